"""MS MARCO: collection, queries, qrels, id triples, text triples, top1000 and runs, all of them tab-separated without quotes.

A folder is read by the names of its files, as they are downloaded: `collection.tsv`, `queries.<split>.tsv`,
`qrels.<split>.tsv`, `qidpidtriples.<split>.tsv`, `triples.<split>.tsv`, `top1000.<split>.tsv`, `run.<name>.tsv`. A file of
another name, given alone, is a run.
"""

from __future__ import annotations

from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.files import files_of, plain
from raydense.data.formats.intake import Intake, Passages, first_of_each
from raydense.data.formats.lines import Field, columns, where
from raydense.data.formats.outlet import Outlet, write_columns
from raydense.data.formats.texts import TextCorpus
from raydense.data.store import full_text
from raydense.errors import InputError

COLLECTION = [Field("passage_id", "id", "pid"), Field("text", "text", "passage")]
QUERIES = [Field("query_id", "id", "qid"), Field("text", "text", "query")]
QRELS = [Field("query_id", "id", "qid"), Field("iteration", "text", "0"), Field("passage_id", "id", "pid"), Field("relevance", "int", "1")]
TRIPLES = [Field("query_id", "id", "qid"), Field("positive", "id", "pos"), Field("negative", "id", "neg")]
TEXTS = [Field("query", "text"), Field("positive", "text", "pos"), Field("negative", "text", "neg")]
TOP1000 = [*TRIPLES[:1], Field("passage_id", "id", "pid"), Field("query", "text"), Field("passage", "text")]
RUN = [Field("query_id", "id", "qid"), Field("passage_id", "id", "pid"), Field("rank", "int")]


def passages(source: Path) -> Passages:
    """The passages of the collection in a folder, or of the file that is one."""
    found = files_of(source, "collection*.tsv")
    if not found:
        raise InputError("no such file", source / "collection.tsv", "check the folder")
    if len(found) > 1:
        raise InputError(f"holds {len(found)} corpus files", source, "join them in one")
    blank = (table.add_column(1, "title", pa.repeat("", table.num_rows)) for table in columns(found[0], COLLECTION))
    return blank, where(found[0])


def read(source: Path, intake: Intake) -> None:
    """Take a folder, or one file, by names."""
    files = files_of(source)
    of = {kind: [p for p in files if p.name.startswith(kind)] for kind in ("collection", "queries", "qrels", "qidpidtriples", "triples")}
    of["top1000"] = [p for p in files if p.name.startswith("top1000")]
    of["run"] = [p for p in files if p.name.startswith("run")] if source.is_dir() else files if not any(of.values()) else []
    if not any(of.values()):
        raise InputError(
            "holds no file of MS MARCO", source, "names begin with collection, queries, qrels, qidpidtriples, triples, top1000 or run"
        )
    if of["collection"]:
        intake.corpus(passages(source))
    if of["queries"]:
        _read_queries(of["queries"], intake)
    for path in of["qrels"]:
        intake.qrels(split_of(path), pa.concat_tables(columns(path, QRELS)), where(path))
    for path in of["qidpidtriples"]:
        _give_triples(pa.concat_tables(columns(path, TRIPLES)), path, intake)
    if of["triples"]:
        _read_text_triples(of["triples"], intake)
    runs = [(p, RUN) for p in of["run"]] + [(p, TOP1000) for p in of["top1000"]]
    for path, fields in runs:
        intake.run("run" if len(runs) == 1 else f"run/{split_of(path)}", pa.concat_tables(columns(path, fields)), where(path))


def split_of(path: Path) -> str:
    """`qrels.dev.small.tsv` -> `dev.small`; `all` where the name says nothing."""
    middle = plain(path).name.split(".")[1:]
    if middle and middle[-1] in ("tsv", "txt"):
        middle.pop()
    return ".".join(middle) or "all"


def _read_queries(paths: list[Path], intake: Intake) -> None:
    """All query files as one; the same query in two of them (dev and dev.small) counts once."""
    tables = [pa.concat_tables(columns(path, QUERIES)) for path in paths]
    if len(tables) == 1:
        intake.queries(tables[0], where(paths[0]))
        return
    single = [table.group_by(["query_id", "text"], use_threads=False).aggregate([([], "count_all")]) for table in tables]
    for path, table, once in zip(paths, tables, single, strict=True):
        if once.num_rows < table.num_rows:
            twice = once["query_id"][pc.index(pc.greater(once["count_all"], 1), pa.scalar(True)).as_py()].as_py()
            raise InputError(f"query_id {twice!r} is there twice", path, "make ids unique")
    intake.queries(first_of_each(pa.concat_tables(tables), ["query_id", "text"]), lambda _: ", ".join(map(str, paths)))


def _give_triples(triples: pa.Table, path: Path, intake: Intake) -> None:
    """One example a query: its positives and its negatives, each once, in the order of the file."""
    for name in ("positive", "negative"):
        intake.check_ids(triples.select(["query_id", name]).rename_columns(["query_id", "passage_id"]), where(path))
    queries = pc.unique(triples["query_id"])
    lists = {side: _lists(first_of_each(triples, ["query_id", side]), side, queries) for side in ("positive", "negative")}
    named = pa.table({"query_id": queries, "positives": lists["positive"], "negatives": lists["negative"]})
    intake.examples(split_of(path), named, lambda _: str(path))


def _lists(pairs: pa.Table, side: str, queries: pa.Array) -> pa.ListArray:
    """The passages of each of `queries`, in the order of `pairs`."""
    query = pc.index_in(pairs["query_id"], value_set=queries).to_numpy()
    passages = pairs[side].combine_chunks().take(pa.array(np.argsort(query, kind="stable")))
    ends = np.cumsum(np.bincount(query, minlength=len(queries)))
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), passages)


def _read_text_triples(paths: list[Path], intake: Intake) -> None:
    """Triples of texts: passages get ids from their texts, queries that are equal are one."""
    texts = TextCorpus()
    per_file = []
    for path in paths:
        triples = pa.concat_tables(columns(path, TEXTS))
        for name in ("positive", "negative"):
            triples = triples.set_column(triples.column_names.index(name), name, texts.add_texts(triples[name].to_pylist(), where(path)))
        query_id = texts.add_queries(triples["query"].to_pylist(), where(path))
        per_file.append((path, triples.set_column(0, "query_id", query_id)))
    texts.write(intake)
    for path, triples in per_file:
        _give_triples(triples, path, intake)


def write(outlet: Outlet) -> None:
    """Write one of run (`qid<TAB>pid<TAB>rank`), qrels, corpus (title and text as one) or queries as a file."""
    kind = outlet.choose("run", "qrels", "corpus", "queries")
    if kind == "corpus":
        tables = ({"pid": t["passage_id"].to_pylist(), "passage": full_text(t).to_pylist()} for t in outlet.passages())
        write_columns(outlet.path, tables)
    elif kind == "queries":
        write_columns(outlet.path, [outlet.queries.select(["query_id", "text"]).to_pydict()])
    elif kind == "qrels":
        found = outlet.table("qrels").to_pydict()
        zeros = repeat("0", len(found["query_id"]))
        write_columns(outlet.path, [{"qid": found["query_id"], "0": zeros, "pid": found["passage_id"], "1": found["relevance"]}])
    else:
        write_columns(outlet.path, [outlet.table("run").select(["query_id", "passage_id", "rank"]).to_pydict()])
