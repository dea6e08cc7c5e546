"""BEIR: `corpus.jsonl` {_id, title, text}, `queries.jsonl` {_id, text}, `qrels/<split>.tsv` with a header line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from raydense.data.formats.intake import Intake, Passages
from raydense.data.formats.lines import Field, columns, first_line, json_lines, where
from raydense.errors import InputError

CORPUS = [Field("passage_id", "id", "_id"), Field("title", "text", needed=False), Field("text", "text")]
QUERIES = [Field("query_id", "id", "_id"), Field("text", "text")]
QRELS = [Field("query_id", "id", "query-id"), Field("passage_id", "id", "corpus-id"), Field("relevance", "int", "score")]
HEADER = "query-id\tcorpus-id\tscore"


def passages(folder: Path) -> Passages:
    """The passages of `corpus.jsonl`."""
    path = folder / "corpus.jsonl"
    return json_lines(path, CORPUS), where(path)


def read(folder: Path, intake: Intake) -> None:
    """Take a BEIR folder. A folder without qrels is a data set to search only."""
    if intake.store is None or (folder / "corpus.jsonl").is_file():
        intake.corpus(passages(folder))
    path = folder / "queries.jsonl"
    intake.queries(pa.concat_tables(json_lines(path, QUERIES)), where(path))
    judged = sorted((folder / "qrels").glob("*.tsv"))
    if (folder / "qrels").is_dir() and not judged:
        raise InputError("holds no <split>.tsv", folder / "qrels", "add one, or remove the folder")
    for path in judged:
        if (header := first_line(path).strip()) != HEADER:
            raise InputError(f"begins with {header[:60]!r}", f"{path}:1", "the first line must be query-id<TAB>corpus-id<TAB>score")
        tables = list(columns(path, QRELS, skip=1))
        intake.qrels(path.stem, pa.concat_tables(tables), where(path, 1))
