"""What makes FAISS fast on the CPU: matrix products where it would take one query after another, and blocks for vectors that are compressed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from raydense.retrieval.merge import Rows, Scores

BLOCK_BYTES = 64 * 2**20  # of decoded vectors: smaller blocks cost more merging, 5% of a search at 16 MiB
_BLOCK_QUERIES = 20  # from so many queries on, decoding each vector once is faster (SQfp16: 24, SQ8: 15); FAISS decodes it for each query


def prefer_blas(faiss: Any, dimension: int) -> None:
    """Let FAISS search 3 and more queries by matrix products, and keep the best k in a reservoir.

    By default FAISS 1.15 takes one query after another up to 128,000 / dimension queries, which is 10 times slower for 100 of
    them; before 1.15 the threshold was a number of queries. Its other method for the best k, a heap, takes up to a tenth longer.
    """
    faiss.cvar.distance_compute_min_k_reservoir = 1
    a_product = faiss.cvar.distance_compute_blas_threshold > 1_000
    faiss.cvar.distance_compute_blas_threshold = 3 * dimension if a_product else 3


@contextmanager
def blas_preferred(faiss: Any, dimension: int) -> Iterator[None]:
    """As `prefer_blas`, for a while: in the process of a task, the next task must not find other settings."""
    before = faiss.cvar.distance_compute_min_k_reservoir, faiss.cvar.distance_compute_blas_threshold
    prefer_blas(faiss, dimension)
    try:
        yield
    finally:
        faiss.cvar.distance_compute_min_k_reservoir, faiss.cvar.distance_compute_blas_threshold = before


class BlockScan:
    """Searches a scalar-quantised index (`SQfp16`, `SQ8`, ...) block by block: rows are decoded once for all queries of a call."""

    def __init__(self, faiss: Any, index: Any, threads: int) -> None:
        self._faiss, self._index, self._threads = faiss, index, threads
        rows = max(1, min(index.ntotal, BLOCK_BYTES // (4 * index.d)))
        self._block = np.empty((rows, index.d), np.float32)
        self._one_at_a_time = Lock()

    def is_faster(self, queries: int) -> bool:
        """Whether it is for so many queries: FAISS gives each query to one thread."""
        return -(-queries // self._threads) * self._threads >= _BLOCK_QUERIES

    def search(self, queries: Scores, k: int) -> tuple[Scores, Rows]:
        """As `faiss.Index.search` by inner product, k at most the rows: scores and rows [n, k], best first."""
        best = self._faiss.ResultHeap(len(queries), k, keep_max=True)
        with self._one_at_a_time:
            for start in range(0, self._index.ntotal, len(self._block)):
                block = self._block[: self._index.ntotal - start]
                self._index.reconstruct_n(start, len(block), block)
                scores, rows = self._faiss.knn(queries, block, min(k, len(block)), metric=self._faiss.METRIC_INNER_PRODUCT)
                best.add_result(scores, rows + start)
        best.finalize()
        return best.D, best.I
