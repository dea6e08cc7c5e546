"""TREC: runs `qid Q0 docid rank score tag` and qrels `qid 0 docid rel`, separated by blanks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydense.data.formats.files import files_of, plain
from raydense.data.formats.intake import Intake, run_part
from raydense.data.formats.lines import Field, cells_of, columns, first_line, where
from raydense.data.formats.outlet import Outlet, exact, write_columns
from raydense.errors import InputError

RUN = [
    Field("query_id", "id", "qid"),
    Field("q0", "text", "Q0"),
    Field("passage_id", "id", "docid"),
    Field("rank", "int"),
    Field("score", "float"),
    Field("tag", "text"),
]
QRELS = [
    Field("query_id", "id", "qid"),
    Field("iteration", "text", "0"),
    Field("passage_id", "id", "docid"),
    Field("relevance", "int", "rel"),
]


def read(source: Path, intake: Intake) -> None:
    """Import a run or qrels, or a folder of them; lines of six columns are a run's, lines of four are judgements.

    A run's passages are ranked by score, as trec_eval does, not by the rank column.
    """
    files = files_of(source)
    width = {path: len(cells_of(first_line(path))) for path in files}
    runs = [path for path in files if width[path] == len(RUN)]
    for path in files:
        if path in runs:
            intake.run(run_part(plain(path).stem, runs), partial(_lines, path), where(path))
        elif width[path] == len(QRELS):
            intake.qrels(split_of(path), pa.concat_tables(columns(path, QRELS, spaces=True)), where(path))
        else:
            raise InputError(f"{width[path]} columns", f"{path}:1", "a run has `qid Q0 docid rank score tag`, qrels have `qid 0 docid rel`")


def _lines(path: Path) -> Iterator[pa.Table]:
    return (table.drop_columns(["q0", "rank", "tag"]) for table in columns(path, RUN, spaces=True))


def split_of(path: Path) -> str:
    """The split in a file's name: `qrels.dev.txt`, `dev.qrels` -> `dev`; `all` if the name has none."""
    words = [w for w in plain(path).name.split(".") if w not in ("qrels", "qrel", "txt", "tsv", "trec", "")]
    return ".".join(words) or "all"


def write(outlet: Outlet) -> None:
    """Write a run or qrels as one file."""
    if outlet.choose("run", "qrels") == "qrels":
        table = outlet.qrels()
        query, passage = table["query_id"].to_pylist(), table["passage_id"].to_pylist()
        write_columns(outlet.path, [{"q": query, "0": repeat("0", len(query)), "p": passage, "r": table["relevance"].to_pylist()}], " ")
        return
    write_columns(outlet.path, (_cells(table, outlet.settings.tag) for table in outlet.run()), " ")


def _cells(run: pa.Table, tag: str) -> dict[str, Iterable[Any]]:
    columns_ = {name: run[name].to_pylist() for name in ("query_id", "passage_id", "rank")}
    q0, tags = repeat("Q0", run.num_rows), repeat(tag, run.num_rows)
    return {
        "q": columns_["query_id"],
        "Q0": q0,
        "p": columns_["passage_id"],
        "rank": columns_["rank"],
        "score": exact(run["score"]),
        "tag": tags,
    }
