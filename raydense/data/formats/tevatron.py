"""Tevatron: corpus {docid, title, text}; training by ids, or (legacy) with the passages' texts; runs `qid<TAB>docid<TAB>score`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from raydense.data.formats.files import files_of, plain
from raydense.data.formats.intake import Intake, Passages, run_part
from raydense.data.formats.lines import Field, columns, first_line, json_lines, json_object, json_objects, where
from raydense.data.formats.outlet import Example, Outlet, exact, write_columns
from raydense.data.formats.records import ExampleRows, name, names, objects, text
from raydense.data.formats.texts import TextCorpus
from raydense.data.json_lines import write_json_lines
from raydense.errors import InputError

CORPUS = [Field("passage_id", "id", "docid"), Field("title", "text", needed=False), Field("text", "text")]
RUN = [Field("query_id", "id", "qid"), Field("passage_id", "id", "docid"), Field("score", "float")]


def _files(source: Path) -> dict[str, list[Path]]:
    """The files by kind, which the first line of a file shows."""
    found: dict[str, list[Path]] = {"corpus": [], "training": [], "run": []}
    for path in files_of(source):
        if plain(path).suffix in (".jsonl", ".json"):
            first = json_object(first_line(path), f"{path}:1")
            found["corpus" if "docid" in first else "training"].append(path)
        elif plain(path).suffix in (".txt", ".tsv", ".trec", ".run") or not source.is_dir():
            found["run"].append(path)
    if not any(found.values()):
        raise InputError("holds no file of Tevatron", source, "give *.jsonl, or a run *.txt")
    return found


def passages(source: Path) -> Passages:
    """The passages of the JSON lines that have `docid`."""
    found = _files(source)["corpus"]
    if not found:
        raise InputError("holds no corpus", source, "add a *.jsonl of {docid, title, text}")
    if len(found) > 1:
        raise InputError(f"holds {len(found)} corpus files", source, "join them in one")
    return json_lines(found[0], CORPUS), where(found[0])


def read(source: Path, intake: Intake) -> None:
    """Import a folder or a file; without a corpus, the texts of legacy training files become the corpus."""
    found = _files(source)
    own_texts = intake.store is None and not found["corpus"]
    gathered = TextCorpus()
    examples = {path: rows for path in found["training"] if len(rows := _read_training(path, gathered, own_texts))}
    intake.expect(
        *((f"examples/{plain(path).stem}", path) for path in examples),
        *((run_part(plain(path).stem, found["run"]), path) for path in found["run"]),
    )
    if found["corpus"]:
        intake.corpus(passages(source))
    if gathered.queries:
        gathered.write(intake, with_corpus=own_texts and bool(gathered.passages))
    for path, rows in examples.items():
        intake.examples(plain(path).stem, rows.table(), rows.at)
    for path in found["run"]:
        intake.run(run_part(plain(path).stem, found["run"]), partial(columns, path, RUN, spaces=True), where(path))


def _read_training(path: Path, gathered: TextCorpus, own: bool) -> ExampleRows:
    """Training entries of both variants; an entry without passages is a query to search for."""
    rows = ExampleRows()
    for at, entry in json_objects(path):
        query = text(entry, "query_text" if "query_text" in entry else "query", at)
        query_id = gathered.add_query(query, at, name(entry, "query_id", at))
        sides = [_passages(entry, side, gathered, own, at) for side in ("positive", "negative")]
        if sides[0] is not None:
            rows.add(at, query_id, sides[0], sides[1] or [])
    return rows


def _passages(entry: dict[str, Any], side: str, gathered: TextCorpus, own: bool, at: str) -> list[str] | None:
    if f"{side}_document_ids" in entry:
        return names(entry, f"{side}_document_ids", at)
    if f"{side}_passages" not in entry:
        return None
    found = objects(entry, f"{side}_passages", at)
    if not own:
        return [name(p, "docid", at) for p in found]
    return [gathered.add(text(p, "text", at), at, text(p, "title", at, ""), name(p, "docid", at)) for p in found]


def write(outlet: Outlet) -> None:
    """Write a run, a corpus, queries, or training examples with the texts of their passages (the variant that needs no corpus)."""
    kind = outlet.choose("examples", "run", "corpus", "queries")
    if kind == "run":
        cells = ({"qid": t["query_id"].to_pylist(), "docid": t["passage_id"].to_pylist(), "score": exact(t["score"])} for t in outlet.run())
        write_columns(outlet.path, cells)
    elif kind == "corpus":
        rows = (row for table in outlet.passages() for row in table.to_pylist())
        write_json_lines(outlet.path, ({"docid": p["passage_id"], "title": p["title"], "text": p["text"]} for p in rows))
    elif kind == "queries":
        asked = outlet.queries.select(["query_id", "text"]).to_pylist()
        write_json_lines(outlet.path, ({"query_id": q["query_id"], "query": q["text"]} for q in asked))
    else:
        write_json_lines(outlet.path, (_legacy(example) for example in outlet.examples()))


def _legacy(example: Example) -> dict[str, Any]:
    positives, negatives = (
        [{"docid": p.passage_id, "title": p.title, "text": p.text} for p in side] for side in (example.positives, example.negatives)
    )
    return {"query_id": example.query_id, "query": example.query, "positive_passages": positives, "negative_passages": negatives}
