"""Random numbers that depend on what they are drawn for, not on the order in which they are drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def draw(seed: int, query_hash: NDArray[np.uint64], row: NDArray[np.int64], stream: int = 0) -> NDArray[np.uint64]:
    """The random number of each candidate, uint64 [n]: a function of seed, query and passage only, not of the rest of the run.

    Another `stream` gives independent numbers. Two rounds of SplitMix64's mixer, which passes the usual tests of randomness.
    """
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + stream) & 0xFFFFFFFFFFFFFFFF)
    return mixed(mixed(query_hash + start) ^ row.astype(np.uint64))


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random-looking number for each of `x` (SplitMix64, Steele, Lea and Flood 2014); sums and products wrap around."""
    with np.errstate(over="ignore"):  # NumPy warns of a single number
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
