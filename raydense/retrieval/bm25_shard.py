"""One BM25 shard: sums memory-mapped eager scores over a query's words, and takes the best passages, ties included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raydense.retrieval.merge import Hits, no_hits, top_k

PARTS = ("scores", "passages", "starts")  # its files


class Bm25Shard:
    """The passages of rows start..start+rows-1; returns global rows."""

    def __init__(self, files: list[Path], start: int, stop: int) -> None:
        self.start, self.rows = start, stop - start
        self._scores, self._passages, self._starts = (np.load(file, mmap_mode="r") for file in files)
        self._sums = np.zeros(self.rows, dtype=np.float32)

    def nearest(self, words: NDArray[np.int32], starts: NDArray[np.int64], k: int) -> Hits:
        """The best k of each query; its words are words[starts[i]:starts[i + 1]], summed in that order, as bm25s sums them.

        Returns float32 and global rows int64, [n, min(k, rows)], exact and in order; a passage without any of the words is
        no hit: -inf and -1.
        """
        k = min(k, self.rows)
        scores, rows = no_hits(len(starts) - 1, k)
        for i in range(len(starts) - 1):
            best, local = self._best(words[starts[i] : starts[i + 1]], k)
            scores[i, : len(best)], rows[i, : len(best)] = best, local + self.start
        return scores, rows

    def _best(self, words: NDArray[np.int32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        for word in words:
            mine = slice(self._starts[word], self._starts[word + 1])
            self._sums[self._passages[mine]] += self._scores[mine]
        touched = np.flatnonzero(self._sums)
        best = top_k(self._sums[touched], touched, k)
        self._sums[touched] = 0
        return best
