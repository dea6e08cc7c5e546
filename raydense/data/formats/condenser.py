"""Condenser: documents cut into passages, JSON lines {spans[]} of texts, as its create_train_co.py reads them (luyug/Condenser).

The token ids that it makes of them are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.files import json_files_of
from raydense.data.formats.intake import Intake, Passages
from raydense.data.formats.lines import Field, json_lines, tables_of, where_in
from raydense.data.store import Rows

SPANS = [Field("spans", "texts")]


def passages(source: Path) -> Passages:
    """The spans. Documents have no ids: passage 0 of the first line is `0-0`, and its `doc_id` `0`."""
    files, starts, counts = json_files_of(source), list[int](), list[Rows]()

    def place(row: int) -> str:
        ends = np.cumsum(np.concatenate(counts))
        return where_in(files, starts, int(np.searchsorted(ends, row, side="right")))

    return _numbered(tables_of(files, partial(json_lines, fields=SPANS), starts), counts), place


def read(source: Path, intake: Intake) -> None:
    """Import a file, or the JSON files of a folder as one corpus."""
    intake.refuse_corpus(json_files_of(source)[0])
    intake.corpus(passages(source))


def _numbered(tables: Iterator[pa.Table], counts: list[Rows]) -> Iterator[pa.Table]:
    """The passages of documents that are counted from 0; notes in `counts` how many each has."""
    first = 0
    for table in tables:
        lengths = pc.list_value_length(table["spans"]).to_numpy().astype(np.int64)
        documents = pa.array(np.repeat(np.arange(first, first + len(lengths)), lengths)).cast(pa.string())
        numbers = pa.array(np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)).cast(pa.string())
        ids = pc.binary_join_element_wise(documents, numbers, "-")
        counts.append(lengths)
        first += len(lengths)
        yield pa.table({"passage_id": ids, "title": pa.repeat("", len(ids)), "text": pc.list_flatten(table["spans"]), "doc_id": documents})
