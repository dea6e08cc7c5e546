"""Positions of ranges: how lists of different lengths, which lie one after another in an array, are taken out of it without a loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ranges(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """starts[i], starts[i] + 1 and so on, `counts[i]` of them, for each i in turn: int64 [sum of counts]; both are int [n]."""
    return np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - (np.cumsum(counts, dtype=np.int64) - counts), counts)
