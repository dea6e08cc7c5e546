"""BEIR: `corpus.jsonl` {_id, title, text}, `queries.jsonl` {_id, text}, `qrels/<split>.tsv` with a header line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from raydense.data.formats.files import either, files_of, plain
from raydense.data.formats.intake import Intake, Passages
from raydense.data.formats.lines import Field, columns, first_line, json_lines, where
from raydense.data.formats.outlet import Outlet, write_columns, write_json_lines
from raydense.errors import InputError

CORPUS = [Field("passage_id", "id", "_id"), Field("title", "text", needed=False), Field("text", "text")]
QUERIES = [Field("query_id", "id", "_id"), Field("text", "text")]
QRELS = [Field("query_id", "id", "query-id"), Field("passage_id", "id", "corpus-id"), Field("relevance", "int", "score")]
HEADER = "query-id\tcorpus-id\tscore"


def passages(folder: Path, strict: bool = True) -> Passages:
    """The passages of `corpus.jsonl`; not `strict`, their text may be missing or null."""
    path = either(folder / "corpus.jsonl")
    fields = [field._replace(needed=field.needed and (strict or field.name != "text")) for field in CORPUS]
    return json_lines(path, fields), where(path)


def read(folder: Path, intake: Intake) -> None:
    """Import a BEIR folder. A folder without qrels is a data set for search only."""
    if intake.store is None or either(folder / "corpus.jsonl").is_file():
        intake.corpus(passages(folder, intake.strict))
    path = either(folder / "queries.jsonl")
    intake.queries(pa.concat_tables(json_lines(path, QUERIES)), where(path))
    if (folder / "qrels").is_dir():
        _read_qrels(folder / "qrels", intake)


def _read_qrels(folder: Path, intake: Intake) -> None:
    judged = files_of(folder, "*.tsv")
    if not judged:
        raise InputError("holds no <split>.tsv", folder, "add one, or remove the folder")
    for path in judged:
        if (header := first_line(path).strip()) != HEADER:
            raise InputError(f"begins with {header[:60]!r}", f"{path}:1", "the first line must be query-id<TAB>corpus-id<TAB>score")
        tables = list(columns(path, QRELS, skip=1))
        intake.qrels(plain(path).stem, pa.concat_tables(tables), where(path, 1))


def write(outlet: Outlet) -> None:
    """Write corpus, queries and qrels, as far as they are given, as a BEIR folder."""
    if not outlet.given or set(outlet.given) - {"corpus", "queries", "qrels"}:
        raise InputError(f"format beir does not write {' with '.join(outlet.given) or 'nothing'}", "export", "give corpus, queries, qrels")
    outlet.path.mkdir()
    if "corpus" in outlet.given:
        passages = (row for table in outlet.passages() for row in table.to_pylist())
        write_json_lines(outlet.path / "corpus.jsonl", ({"_id": p["passage_id"], "title": p["title"], "text": p["text"]} for p in passages))
    if "queries" in outlet.given:
        rows = outlet.queries.select(["query_id", "text"]).to_pylist()
        write_json_lines(outlet.path / "queries.jsonl", ({"_id": q["query_id"], "text": q["text"]} for q in rows))
    if outlet.settings.qrels:
        (outlet.path / "qrels").mkdir()
        split = Path(outlet.settings.qrels).resolve().name
        write_columns(outlet.path / "qrels" / f"{split}.tsv", [outlet.table("qrels").to_pydict()], header=HEADER)
