"""BEIR: `corpus.jsonl` {_id, title, text}, `queries.jsonl` {_id, text, perhaps answers}, `qrels/<split>.tsv` with a header line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from raydense.data.formats.files import either, files_of, plain
from raydense.data.formats.intake import Intake, Passages, without_empty_answers
from raydense.data.formats.lines import Field, columns, first_line, json_lines, where
from raydense.data.formats.outlet import Outlet, splits_of, write_columns
from raydense.data.json_lines import write_json_lines
from raydense.data.tables import read_table
from raydense.errors import InputError

CORPUS = [Field("passage_id", "id", "_id"), Field("title", "text", needed=False), Field("text", "text")]
QUERIES = [Field("query_id", "id", "_id"), Field("text", "text"), Field("answers", "texts", needed=False)]
QRELS = [Field("query_id", "id", "query-id"), Field("passage_id", "id", "corpus-id"), Field("relevance", "int", "score")]
HEADER = "query-id\tcorpus-id\tscore"


def passages(source: Path, strict: bool = True) -> Passages:
    """The passages of `corpus.jsonl` in a folder, or of the file that is one; with `strict` off, their text may be missing or null."""
    path = source if source.is_file() else either(source / "corpus.jsonl")
    return json_lines(path, corpus_fields(strict)), where(path)


def corpus_fields(strict: bool) -> list[Field]:
    """The fields of a passage; with `strict` off, the text need not be there."""
    return [field._replace(needed=field.needed and (strict or field.name != "text")) for field in CORPUS]


def read(source: Path, intake: Intake) -> None:
    """Import a BEIR folder, or one file of queries or qrels. A folder without qrels is a data set for search only."""
    if not source.is_dir():
        _read_file(source, intake)
        return
    folder = source
    judged = files_of(folder / "qrels", "*.tsv") if (folder / "qrels").is_dir() else []
    intake.expect(*((f"qrels/{plain(path).stem}", path) for path in judged))
    if intake.store is None or either(folder / "corpus.jsonl").is_file():
        intake.corpus(passages(folder, intake.strict))
    _read_queries(either(folder / "queries.jsonl"), intake)
    if (folder / "qrels").is_dir() and not judged:
        raise InputError("holds no <split>.tsv", folder / "qrels", "add one, or remove the folder")
    for path in judged:
        _read_qrels(path, intake)


def files(folder: Path) -> dict[str, list[Path]]:
    """The files of each part that an import of a BEIR folder makes: for `plan`, before anything is read."""
    judged = files_of(folder / "qrels", "*.tsv") if (folder / "qrels").is_dir() else []
    texts = {"corpus": either(folder / "corpus.jsonl"), "queries": either(folder / "queries.jsonl")}
    return {part: [file] for part, file in texts.items() if file.is_file()} | {f"qrels/{plain(path).stem}": [path] for path in judged}


def _read_file(path: Path, intake: Intake) -> None:
    if plain(path).suffix == ".tsv":
        _read_qrels(path, intake)
    elif path.name.startswith("corpus"):
        raise InputError("is a corpus alone", path, "give its folder, with queries.jsonl; in Python, `import_corpus` reads it alone")
    else:
        _read_queries(path, intake)


def _read_queries(path: Path, intake: Intake) -> None:
    intake.queries(without_empty_answers(pa.concat_tables(json_lines(path, QUERIES))), where(path))


def _read_qrels(path: Path, intake: Intake) -> None:
    if (header := first_line(path).strip()) != HEADER:
        raise InputError(f"begins with {header[:60]!r}", f"{path}:1", "the first line must be query-id<TAB>corpus-id<TAB>score")
    intake.qrels(plain(path).stem, pa.concat_tables(columns(path, QRELS, skip=1)), where(path, 1))


def write(outlet: Outlet) -> None:
    """Write corpus, queries and qrels, those that are given or all of a data set, as a BEIR folder."""
    parts = outlet.choose_parts("corpus", "queries", "qrels")
    outlet.path.mkdir()
    if "corpus" in parts:
        passages = (row for table in outlet.passages() for row in table.to_pylist())
        write_json_lines(outlet.path / "corpus.jsonl", ({"_id": p["passage_id"], "title": p["title"], "text": p["text"]} for p in passages))
    if "queries" in parts:
        write_json_lines(outlet.path / "queries.jsonl", map(_query, outlet.queries.to_pylist()))
    for split, path in splits_of(parts, "qrels"):
        (outlet.path / "qrels").mkdir(exist_ok=True)
        write_columns(outlet.path / "qrels" / f"{split}.tsv", [read_table(path, "qrels").to_pydict()], header=HEADER)


def _query(row: dict[str, Any]) -> dict[str, Any]:
    """A query as its line has it: with answers where it has some."""
    line = {"_id": row["query_id"], "text": row["text"]}
    return line | {"answers": row["answers"]} if row.get("answers") else line
