"""MS MARCO: collection, queries, qrels, triples of ids, triples of texts, top1000 and runs, all tab-separated without quotes.

A folder is read by the names that its files have when downloaded: `collection.tsv`, `queries.<split>.tsv`,
`qrels.<split>.tsv`, `qidpidtriples.<split>.tsv`, `triples.<split>.tsv`, `top1000.<split>.tsv`, `run.<name>.tsv`. A file of
another name, given alone, is a run. `para.title.txt` of RocketQA's archive has titles for the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.files import corpus_file, files_of, plain
from raydense.data.formats.intake import Intake, Passages, run_part, without_repeats
from raydense.data.formats.lines import Field, columns, first_line, where
from raydense.data.formats.outlet import Example, Outlet, write_columns
from raydense.data.formats.triples import TextTriples, give_id_triples
from raydense.data.lookup import IdLookup
from raydense.data.store import full_text
from raydense.errors import InputError
from raydense.runtime.progress import say

COLLECTION = [Field("passage_id", "id", "pid"), Field("text", "text", "passage")]
TITLES = [Field("passage_id", "id", "pid"), Field("title", "text")]
QUERIES = [Field("query_id", "id", "qid"), Field("text", "text", "query")]
QRELS = [Field("query_id", "id", "qid"), Field("iteration", "text", "0"), Field("passage_id", "id", "pid"), Field("relevance", "int", "1")]
TRIPLES = [Field("query_id", "id", "qid"), Field("positive", "id", "pos"), Field("negative", "id", "neg")]
TOP1000 = [*TRIPLES[:1], Field("passage_id", "id", "pid"), Field("query", "text"), Field("passage", "text")]
RUN = [Field("query_id", "id", "qid"), Field("passage_id", "id", "pid"), Field("rank", "int")]


def passages(source: Path) -> Passages:
    """The passages of the collection in a folder, with titles if that has them, or of the file that is one."""
    path = corpus_file(source, "collection*.tsv", "collection.tsv")
    titles = files_of(source, "para.title.txt") if source.is_dir() else []
    if titles:
        return _titled(path, titles[0]), where(path)
    blank = (table.add_column(1, "title", pa.repeat("", table.num_rows)) for table in columns(path, COLLECTION))
    return blank, where(path)


def _titled(collection: Path, path: Path) -> Iterator[pa.Table]:
    """The passages, each with its title by its id, "" where the file of titles has none."""
    titles = pa.concat_tables(columns(path, TITLES))
    known, text, passages, some = IdLookup(titles["passage_id"]), titles["title"].combine_chunks(), 0, 0
    for table in columns(collection, COLLECTION):
        place = known.positions(table["passage_id"])
        found = text.take(pa.array(place, mask=place < 0))
        passages, some = passages + table.num_rows, some + table.num_rows - found.null_count
        yield table.add_column(1, "title", pc.fill_null(found, ""))
    say(f"import corpus: {some:,} of {passages:,} passages have a title of {path.name}")


def read(source: Path, intake: Intake) -> None:
    """Import a folder, or one file, by file names."""
    files = files_of(source)
    of = {kind: [p for p in files if p.name.startswith(kind)] for kind in ("collection", "queries", "qrels", "qidpidtriples", "triples")}
    of["top1000"] = [p for p in files if p.name.startswith("top1000")]
    of["run"] = [p for p in files if p.name.startswith("run")] if source.is_dir() else files if not any(of.values()) else []
    if not any(of.values()):
        raise InputError(
            "holds no file of MS MARCO", source, "names begin with collection, queries, qrels, qidpidtriples, triples, top1000 or run"
        )
    for path in of["triples"]:
        intake.refuse_corpus(path)
        for other in of["collection"] + of["queries"]:
            raise InputError(f"makes corpus and queries of its own texts, and {other.name} is in the folder, too", path, "import it alone")
    intake.expect(*_parts(of))
    if of["collection"]:
        intake.corpus(passages(source))
    if of["queries"]:
        _read_queries(of["queries"], intake)
    for path in of["qrels"]:
        intake.qrels(split_of(path), pa.concat_tables(columns(path, QRELS, spaces="\t" not in first_line(path))), where(path))
    for path in of["qidpidtriples"]:
        give_id_triples(split_of(path), columns(path, TRIPLES), where(path), path, intake)
    if of["triples"]:
        _read_text_triples(of["triples"], intake)
    for path in of["top1000"]:
        say(f"import: {path.name}: its candidates have no ranking; re-rank all of them: rerank --depth 1000")
    runs = of["run"] + of["top1000"]
    for path in runs:
        fields = TOP1000 if path in of["top1000"] else RUN
        intake.run(run_part(split_of(path), runs), partial(columns, path, fields), where(path))


def _parts(of: dict[str, list[Path]]) -> Iterator[tuple[str, Path]]:
    """The parts that are named by files, with the file of each."""
    yield from ((f"qrels/{split_of(path)}", path) for path in of["qrels"])
    yield from ((f"examples/{split_of(path)}", path) for path in of["qidpidtriples"] + of["triples"])
    runs = of["run"] + of["top1000"]
    yield from ((run_part(split_of(path), runs), path) for path in runs)


def files(source: Path) -> dict[str, list[Path]]:
    """The files of each part that an import of a folder makes: for `plan`, before anything is read."""
    triples = files_of(source, "triples*")
    parts = {part: files_of(source, f"{name}*") or triples for part, name in (("corpus", "collection"), ("queries", "queries"))}
    parts |= {f"qrels/{split_of(path)}": [path] for path in files_of(source, "qrels*")}
    parts |= {f"examples/{split_of(path)}": [path] for path in (*files_of(source, "qidpidtriples*"), *triples)}
    runs = [*files_of(source, "run*"), *files_of(source, "top1000*")]
    parts |= {run_part(split_of(path), runs): [path] for path in runs}
    return {part: found for part, found in parts.items() if found}


def split_of(path: Path) -> str:
    """The split in a file's name: `qrels.dev.small.tsv` -> `dev.small`; `all` if the name has none."""
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
            raise InputError(f"query_id {twice!r} is repeated", path, "make ids unique")
    intake.queries(without_repeats(pa.concat_tables(tables), ["query_id", "text"]), lambda _: ", ".join(map(str, paths)))


def _read_text_triples(paths: list[Path], intake: Intake) -> None:
    triples, source = TextTriples(paths), ", ".join(map(str, paths))
    passages = triples.read()
    intake.corpus((passages, lambda _: source))
    for _ in passages:  # where the corpus was finished when the import was stopped, it was not read again
        pass
    queries = triples.queries()
    intake.queries(queries, lambda _: source)
    assert intake.store is not None
    for path in paths:
        intake.examples(split_of(path), triples.examples(path, intake.store, queries), lambda _: source)


def write(outlet: Outlet) -> None:
    """Write one of run (`qid<TAB>pid<TAB>rank`), qrels, examples (triples of ids), corpus (title and text as one) or queries as a file."""
    kind = outlet.choose("run", "qrels", "examples", "corpus", "queries")
    if kind == "corpus":
        tables = ({"pid": t["passage_id"].to_pylist(), "passage": full_text(t).to_pylist()} for t in outlet.passages())
        write_columns(outlet.path, tables)
    elif kind == "queries":
        write_columns(outlet.path, [outlet.queries.select(["query_id", "text"]).to_pydict()])
    elif kind == "qrels":
        found = outlet.qrels().to_pydict()
        zeros = repeat("0", len(found["query_id"]))
        write_columns(outlet.path, [{"qid": found["query_id"], "0": zeros, "pid": found["passage_id"], "1": found["relevance"]}])
    elif kind == "examples":
        write_columns(outlet.path, map(_triples, outlet.triples()))
    else:
        write_columns(outlet.path, (table.select(["query_id", "passage_id", "rank"]).to_pydict() for table in outlet.run()))


def _triples(example: Example) -> dict[str, Iterable[str]]:
    sides = {"pos": [p.passage_id for p in example.positives], "neg": [p.passage_id for p in example.negatives]}
    return {"qid": repeat(example.query_id, len(sides["pos"])), **sides}
