"""Which passages are known positives of a query, by row or by equal text: those are none of its negatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydense.ranges import ranges
from raydense.training.part import Part


def known_positives(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each of the passages at `rows` is a known positive of each query, by row or by equal text: bool [n, len(rows)]."""
    of_query, of_passage = text_hash[mine.known.values], text_hash[rows]
    order = np.argsort(of_passage, kind="stable")
    low, high = (np.searchsorted(of_passage[order], of_query, side) for side in ("left", "right"))
    counts = high - low
    found = np.zeros((len(mine), len(rows)), np.bool_)
    found[np.repeat(mine.known.owner, counts), order[ranges(low, counts)]] = True
    return found


def known_of_lists(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each passage of a query's own list is a known positive of it, by row or by equal text: bool of the shape [n, m] of `rows`."""
    known, column = np.nonzero(text_hash[rows][mine.known.owner] == text_hash[mine.known.values][:, None])
    found = np.zeros(rows.shape, np.bool_)
    found[mine.known.owner[known], column] = True
    return found
