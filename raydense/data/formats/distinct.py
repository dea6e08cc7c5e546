"""Leaves out what a training would count twice: a passage that an example names again, and a negative that is one of its positives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.store import Rows

_BLOCK = 1 << 16  # examples, which bounds the memory


def distinct(table: pa.Table, corpus: int) -> tuple[pa.Table, int]:
    """Examples with each passage once, in the first's place, and how many were left out; scores and sources go with their passages.

    `table` has lists `positives` and `negatives` of rows of a corpus of `corpus` passages.
    """
    blocks = [_distinct(table.slice(at, _BLOCK).combine_chunks(), corpus) for at in range(0, len(table), _BLOCK)]
    left = sum(count for _, count in blocks)
    return (pa.concat_tables([block for block, _ in blocks]).combine_chunks(), left) if left else (table, 0)


def _distinct(table: pa.Table, corpus: int) -> tuple[pa.Table, int]:
    left, known = 0, np.empty(0, np.int64)
    for side in ("positive", "negative"):
        lists = table[f"{side}s"]
        lengths = _lengths(lists)
        keys = np.repeat(np.arange(len(table)), lengths) * corpus + _rows(lists)
        kept = ~np.isin(keys, known)
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True
        kept &= first
        known = keys
        if kept.all():
            continue
        left += int((~kept).sum())
        for name in _parallel(table, side):
            table = table.set_column(table.column_names.index(name), name, _filtered(table[name], lengths, kept))
    return table, left


def _parallel(table: pa.Table, side: str) -> Iterator[str]:
    """The columns with a value for each passage of a side."""
    yield from (name for name in (f"{side}s", f"{side}_scores", f"{side}_sources") if name in table.column_names)


def _filtered(lists: pa.ChunkedArray, lengths: Rows, kept: NDArray[np.bool_]) -> pa.ListArray:
    """The kept values of lists that have `lengths` values or are null, where `kept` tells for each value whether it stays."""
    absent = lists.is_null().to_numpy()
    there = np.repeat(~absent, lengths)
    owner = np.repeat(np.arange(len(lists)), lengths)[there & kept]
    ends = np.append(0, np.cumsum(np.bincount(owner, minlength=len(lists))))
    values = pc.list_flatten(lists).combine_chunks().filter(pa.array(kept[there]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=pa.array(absent))


def _lengths(lists: pa.ChunkedArray) -> Rows:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)


def _rows(lists: pa.ChunkedArray) -> Rows:
    return pc.list_flatten(lists).to_numpy()
