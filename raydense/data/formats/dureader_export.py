"""Writes the files of DuReader-retrieval, as its baseline names and reads them; `dureader.py` says where that is written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.outlet import Example, Outlet, Passage, splits_of, write_columns
from raydense.data.json_lines import write_json_lines
from raydense.data.store import full_text
from raydense.data.tables import one_column, query_positions, query_starts, read_table
from raydense.errors import InputError
from raydense.runtime.progress import say

_PARTS = 4  # the baseline's search takes four files, all as long as the first but for the last
_STEP = 8_192
_COLLECTION = "passage-collection"
_BREAKS = r"[\t\r\n]+"  # what a passage cannot have in a file of lines and columns; a blank takes its place in all files


def write_files(outlet: Outlet) -> None:
    """Write a run as one file, or corpus, queries, qrels and examples as a folder; InputError on what the files cannot hold."""
    if outlet.given == ["run"]:
        write_json_map(outlet.path, _lists(outlet.run()))
        return
    parts = outlet.choose_parts("corpus", "queries", "qrels", "examples")
    if not {"corpus", "queries"} <= parts.keys() and set(parts) - {"corpus", "queries"}:
        raise InputError("qrels and examples need their texts", "export", "give --corpus and --queries too")
    if f"qrels/{_COLLECTION}" in parts:
        raise InputError(f"a split called {_COLLECTION} would lie in the folder of the passages", "export", "rename that split")
    outlet.path.mkdir()
    if "corpus" in parts:
        _write_collection(outlet, outlet.path / _COLLECTION)
    if "queries" in parts:
        judged = [_write_questions(outlet, split, path) for split, path in splits_of(parts, "qrels")]
        _write_others(outlet, judged)
        if "answers" in outlet.queries.column_names:
            say("export: leaves out the answers of the queries, which the files do not have")
    for split, path in splits_of(parts, "examples"):
        (outlet.path / "train").mkdir(exist_ok=True)
        if split.startswith("cross."):
            write_columns(outlet.path / "train" / f"{split}.tsv", map(_labelled, outlet.examples(path)))
        else:
            name = split.removeprefix("dual.")
            write_columns(outlet.path / "train" / f"dual.{name}.tsv", _triples(outlet, path))


def write_json_map(path: Path, pairs: Iterable[tuple[str, Any]]) -> None:
    """Write pairs as one JSON object, a pair a line, UTF-8 as it is."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        between = "{\n"
        for key, value in pairs:
            stream.write(f"{between}{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}")
            between = ",\n"
        stream.write("\n}\n" if between == ",\n" else "{}\n")


def _write_collection(outlet: Outlet, folder: Path) -> None:
    """The parts `- <TAB> <TAB> text <TAB> 0`, and the id of each line, counted through all parts from 0."""
    folder.mkdir()
    store, each, changed = outlet.store, -(-len(outlet.store) // _PARTS), 0

    def lines(first: int, stop: int) -> Iterator[dict[str, Iterable[Any]]]:
        nonlocal changed
        for at in range(first, stop, _STEP):
            texts = full_text(store.slice(at, min(at + _STEP, stop), ["title", "text"]))
            changed += pc.sum(pc.match_substring_regex(texts, _BREAKS)).as_py()
            yield _columns("-", "", _on_one_line(texts), "0")

    for part, first in enumerate(range(0, len(store), each)):
        write_columns(folder / f"part-{part:02d}", lines(first, min(first + each, len(store))))
    if changed:
        say(f"export corpus: tabs and line breaks became a blank in {changed:,} of {len(store):,} passages: the format cannot hold them")
    ids = (name for table in outlet.passages() for name in table["passage_id"].to_pylist())
    write_json_map(folder / "passage2id.map.json", ((str(row), name) for row, name in enumerate(ids)))


def _on_one_line(texts: pa.ChunkedArray) -> list[str]:
    return list(pc.replace_substring_regex(texts, _BREAKS, " ").to_pylist())


def _columns(*cells: str | list[str]) -> dict[str, Iterable[Any]]:
    """Columns of one length for `write_columns`: a text stands in each line."""
    rows = max(len(cell) for cell in cells if isinstance(cell, list))
    return {str(i): [cell] * rows if isinstance(cell, str) else cell for i, cell in enumerate(cells)}


def _write_questions(outlet: Outlet, split: str, path: str) -> pa.ChunkedArray:
    """The questions that a split judges, with their paragraphs, in the three files of `dev/`; returns the ids of all that it judges."""
    folder, table = outlet.path / split, read_table(path, "qrels")
    asked, relevance = table["query_id"], table["relevance"]
    if (pc.max(relevance).as_py() or 0) > 1:
        raise InputError("has grades above 1, which answer_paragraphs cannot hold", path, "use another format")
    table = table.filter(pc.equal(relevance, 1))
    if table.num_rows < len(relevance):
        say(f"export {split}: leaves out {len(relevance) - table.num_rows:,} judgements that a passage does not answer")
    positives, table = len(table), outlet.store.known_judgements(table, path)
    outlet.store.say_lacking(f"export {split}", positives - len(table), positives, path)
    if bare := len(pc.unique(asked)) - len(pc.unique(table["query_id"])):
        say(f"export {split}: leaves out {bare:,} queries, of which no judgement is left")
    folder.mkdir()
    write_json_lines(folder / f"{split}.json", _questions(outlet, table, path))
    _write_names(outlet.queries.filter(pc.is_in(outlet.queries["query_id"], pc.unique(table["query_id"]))), folder, split)
    return asked


def _questions(outlet: Outlet, table: pa.Table, path: str) -> Iterator[dict[str, Any]]:
    """Each judged question with its answer paragraphs, in the order of the queries."""
    position = query_positions(table["query_id"], outlet.queries, path)
    order = np.argsort(position, kind="stable")
    table, position = table.take(pa.array(order)), position[order]
    rows, starts = outlet.store.known_rows(table["passage_id"], path), query_starts(table["query_id"])
    for first in range(0, len(starts) - 1, _STEP // 8):
        edges = starts[first : first + _STEP // 8 + 1]
        span = slice(int(edges[0]), int(edges[-1]))
        texts = _on_one_line(full_text(outlet.store.take(rows[span], ["title", "text"])))
        found = [{"paragraph_id": i, "paragraph_text": t} for i, t in zip(table["passage_id"][span].to_pylist(), texts, strict=True)]
        asked = outlet.queries.take(pa.array(position[edges[:-1]])).to_pylist()
        for query, start, stop in zip(asked, edges[:-1] - edges[0], edges[1:] - edges[0], strict=True):
            yield {"question_id": query["query_id"], "question": query["text"], "answer_paragraphs": found[start:stop]}


def _write_names(queries: pa.Table, folder: Path, split: str) -> None:
    """`q2qid.<split>.json`, where the first of two equal questions counts, and `<split>.q.format` for the baseline's encoder."""
    ids, texts = queries["query_id"].to_pylist(), queries["text"].to_pylist()
    write_json_map(folder / f"q2qid.{split}.json", dict(zip(texts[::-1], ids[::-1], strict=True)).items())
    write_columns(folder / f"{split}.q.format", [_columns(texts, "", "", "0")] if texts else [])


def _write_others(outlet: Outlet, judged: list[pa.ChunkedArray]) -> None:
    """The queries without judgements as those of a test set, `test1/test1.json`."""
    others = outlet.queries.filter(pc.invert(pc.is_in(outlet.queries["query_id"], pc.unique(one_column(judged)))))
    folder = outlet.path / "test1"
    if not others.num_rows:
        return
    if folder.exists():
        raise InputError(f"has {others.num_rows:,} queries without judgements, for test1 as qrels/test1", "export", "rename that split")
    folder.mkdir()
    asked = zip(others["query_id"].to_pylist(), others["text"].to_pylist(), strict=True)
    write_json_lines(folder / "test1.json", ({"question_id": i, "question": t} for i, t in asked))
    _write_names(others, folder, "test1")


def _triples(outlet: Outlet, path: str) -> Iterator[dict[str, Iterable[Any]]]:
    """Lines of query, positive and negative."""
    for example in outlet.triples(path):
        positives, negatives = ([_spelled(passage) for passage in side] for side in (example.positives, example.negatives))
        yield _columns(example.query, "", positives, "", negatives, "0")


def _labelled(example: Example) -> dict[str, Iterable[Any]]:
    """Lines of query, passage and label: 1 for a positive, 0 for a negative."""
    texts = [_spelled(passage) for passage in (*example.positives, *example.negatives)]
    labels = ["1"] * len(example.positives) + ["0"] * len(example.negatives)
    return _columns(example.query, "", texts, labels)


def _spelled(passage: Passage) -> str:
    return re.sub(_BREAKS, " ", f"{passage.title} {passage.text}".strip())


def _lists(tables: Iterable[pa.Table]) -> Iterator[tuple[str, list[str]]]:
    """Each query of a run with its passages, best first."""
    query, hits = "", list[str]()
    for table in tables:
        starts, passages = query_starts(table["query_id"]), table["passage_id"].to_pylist()
        for start, stop in pairwise(starts.tolist()):
            now = table["query_id"][start].as_py()
            if hits and now != query:
                yield query, hits
                hits = []
            query, hits = now, hits + passages[start:stop]
    if hits:
        yield query, hits
