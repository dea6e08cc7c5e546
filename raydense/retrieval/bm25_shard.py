"""One BM25 shard: sums memory-mapped eager scores over a query's words, and takes the best passages, ties included.

The passages are taken in blocks whose sums stay in the processor's cache; the postings of a word are in the order of passages, so that each
block has a slice of them. The k-th best score so far is the least that a passage of a later block must have.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raydense.retrieval.merge import Hits, no_hits, top_k

PARTS = ("scores", "passages", "starts")  # its files
_BLOCK = 2**18  # passages
_QUERIES = 16  # that a thread searches before it takes others
_LEAST = np.finfo(np.float32).smallest_subnormal
Words = NDArray[np.int32]
Best = tuple[NDArray[np.float32], NDArray[np.int64]]


class Bm25Shard:
    """The passages of rows start..start+rows-1; returns global rows. `threads` search several queries of a call at once.

    Each of `files` (`PARTS`) is mapped before the next one is asked for: a full cache may remove a file that is not.
    """

    def __init__(self, files: Iterable[Path], start: int, stop: int, threads: int = 1) -> None:
        self.start, self.rows = start, stop - start
        self._scores, self._passages, self._starts = (np.load(file, mmap_mode="r").view(np.ndarray) for file in files)
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None

    def nearest(self, words: Words, starts: NDArray[np.int64], k: int) -> Hits:
        """The best k of each query; its words are words[starts[i]:starts[i + 1]], summed in that order, as bm25s sums them.

        Returns float32 and global rows int64, [n, min(k, rows)], exact and in order; a passage without any of the words is
        no hit: -inf and -1.
        """
        k = min(k, self.rows)
        scores, rows = no_hits(len(starts) - 1, k)

        def search(first: int) -> None:
            sums = np.empty(min(_BLOCK, self.rows), np.float32)
            for i in range(first, min(first + _QUERIES, len(scores))):
                best, local = self._best(words[starts[i] : starts[i + 1]], k, sums)
                scores[i, : len(best)], rows[i, : len(best)] = best, local + self.start

        # NumPy's additions, comparisons and partitions of a block let other threads run
        list((self._threads.map if self._threads else map)(search, range(0, len(scores), _QUERIES)))
        return scores, rows

    def _best(self, words: Words, k: int, sums: NDArray[np.float32]) -> Best:
        edges = np.append(np.arange(0, self.rows, _BLOCK), self.rows)
        postings = [self._postings(word, edges) for word in words.tolist()]
        found, least = (np.empty(0, np.float32), np.empty(0, np.int64)), _LEAST
        for block, first in enumerate(edges[:-1].tolist()):
            here = sums[: edges[block + 1] - first]
            here.fill(0)
            for passages, scores, cuts in postings:
                mine = slice(cuts[block], cuts[block + 1])
                np.add.at(here, passages[mine] - np.int32(first), scores[mine])
            if least == _LEAST:
                least = max(least, _lower_bound(here, k))
            at = np.flatnonzero(here >= least)
            found = np.concatenate([found[0], here[at]]), np.concatenate([found[1], at + first])
            if len(found[0]) > 2 * k:
                found = top_k(*found, k)
                least = found[0][-1]
        return top_k(*found, k)

    def _postings(self, word: int, edges: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32], list[int]]:
        """The passages that have the word, their scores, and where the slice of each block begins."""
        mine = slice(self._starts[word], self._starts[word + 1])
        passages = self._passages[mine]
        return passages, self._scores[mine], np.searchsorted(passages, edges.astype(np.int32)).tolist()


def _lower_bound(scores: NDArray[np.float32], k: int) -> np.float32:
    """At least k of `scores` are as high as this: the k-th highest of the maxima of 4 k groups. 0 where there are too few scores for that."""
    groups = 4 * k
    if len(scores) < 4 * groups:
        return np.float32(0)
    maxima = scores[: len(scores) // groups * groups].reshape(-1, groups).max(axis=0)
    return np.float32(np.partition(maxima, groups - k)[groups - k])
