"""What makes FAISS fast on the CPU: matrix products, and threads that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from raydense.retrieval.faiss_library import COUNTS_NUMBERS, faiss
from raydense.retrieval.merge import Hits, Rows, Scores, first_share, widened
from raydense.runtime.tasks import shard_ranges

Result = TypeVar("Result")

BLOCK_BYTES = 64 * 2**20  # of decoded vectors, of all threads
_BLOCK_QUERIES = 10  # from so many queries on, decoding each vector once is faster (SQbf16: 7, SQ8 and SQfp16: 9)
_FEW_QUERIES = 64  # up to so many, every thread takes a part of the rows: the memory for products and hits is small
_HITS_BYTES, _HIT_BYTES = 64 * 2**20, 36  # of all threads; of a hit: its own score and row, and FAISS's reservoir of two
_LEAST_WORK = 2**21  # multiplications that are worth a thread, about 0.5 ms
_settings, _preferring, _before = Lock(), 0, (0, 0)  # of FAISS in this process: the searches that changed them, and what they were


def prefer_blas(dimension: int) -> None:
    """Let FAISS search 3 and more queries by matrix products, and keep the best k in a reservoir.

    By default FAISS 1.15 takes one query after another up to 128,000 / dimension queries, which is 10 times slower for 100 of
    them; before 1.15 the threshold was a number of queries. Its other method for the best k, a heap, takes up to a tenth longer.
    """
    faiss.cvar.distance_compute_min_k_reservoir = 1
    faiss.cvar.distance_compute_blas_threshold = 3 * dimension if COUNTS_NUMBERS else 3


@contextmanager
def blas_preferred(dimension: int) -> Iterator[None]:
    """As `prefer_blas`, for a while: what else the process does with FAISS must not find other settings. The last of several threads restores them."""
    global _preferring, _before
    with _settings:
        if not _preferring:
            _before = faiss.cvar.distance_compute_min_k_reservoir, faiss.cvar.distance_compute_blas_threshold
        _preferring += 1
        prefer_blas(dimension)
    try:
        yield
    finally:
        with _settings:
            _preferring -= 1
            if not _preferring:
                faiss.cvar.distance_compute_min_k_reservoir, faiss.cvar.distance_compute_blas_threshold = _before


def share_out(pool: ThreadPoolExecutor, work: Callable[[int], Result], parts: int) -> list[Result]:
    """What `work` returns for each part; the calling thread does the first, and what no other has begun, as on a busy machine."""
    others = [(part, pool.submit(work, part)) for part in range(1, parts)]
    try:
        found = [work(0)]
        return found + [work(part) if begun.cancel() else begun.result() for part, begun in others]
    finally:
        wait([begun for _, begun in others if not begun.cancel()])  # after an error none still writes where the next call will


def best_of(found: list[Hits], k: int) -> Hits:
    """The best k of what several threads found, each [n, m], best first."""
    best = faiss.ResultHeap(len(found[0][0]), k, keep_max=True)
    for scores, rows in found:
        best.add_result(scores, rows)
    best.finalize()
    return best.D, best.I


def joined(found: list[Hits]) -> Hits:
    """The hits of several parts of the queries."""
    return found[0] if len(found) == 1 else (np.concatenate([hits[0] for hits in found]), np.concatenate([hits[1] for hits in found]))


class Scan:
    """Searches an exact index (`Flat`, `SQfp16`, `SQ8`, ...): each thread takes other rows, for all queries of a call.

    FAISS's own threads share out the queries, so that one query gets one thread, and wait for each other after every 1,024 rows.
    Vectors that are compressed are decoded in blocks, once for all queries of a call, where that is faster.
    """

    def __init__(self, index: Any, threads: int) -> None:
        self._index, self._threads = index, threads
        self._parts = next(parts for parts in (4, 3, 2, 1) if threads % parts == 0)  # more would take more memory: 20 MiB each
        self._pool = ThreadPoolExecutor(threads)
        self._one_at_a_time = Lock()
        self._flat = isinstance(index, faiss.IndexFlat)
        width = index.d if self._flat else index.code_size
        data = index.get_xb() if self._flat else index.codes.data()
        self._stored: NDArray[Any] = faiss.rev_swig_ptr(data, index.ntotal * width).reshape(index.ntotal, width)
        rows = max(1, min(index.ntotal, BLOCK_BYTES // self._parts // (4 * index.d)))
        self._blocks = [] if self._flat else [np.empty((rows, index.d), np.float32) for _ in range(self._parts)]

    def search(self, queries: Scores, k: int) -> Hits:
        """As `faiss.Index.search` by inner product, k at most the rows: scores and rows [n, k], best first."""
        step = max(_FEW_QUERIES, _HITS_BYTES // (_HIT_BYTES * self._parts * k))
        return joined([self._search(queries[at : at + step], k) for at in range(0, max(1, len(queries)), step)])

    def _search(self, queries: Scores, k: int) -> Hits:
        decoded = not self._flat and len(queries) >= _BLOCK_QUERIES
        way = self._product if self._flat else self._decoded if decoded else self._coded
        most = self._parts if decoded or len(queries) > _FEW_QUERIES else self._threads
        work = len(queries) * self._index.ntotal * self._index.d
        ranges = shard_ranges(self._index.ntotal, max(1, min(most, work // _LEAST_WORK, self._index.ntotal // k)))

        def search(part: int) -> Hits:
            faiss.omp_set_num_threads(self._threads // most)
            return way(queries, k, part, *ranges[part])

        with self._one_at_a_time if decoded else nullcontext():
            found = share_out(self._pool, search, len(ranges))
        return found[0] if len(found) == 1 else best_of(found, k)

    def decoded(self, rows: Rows) -> Scores:
        """The vectors of a compressed index at `rows` [n]. FAISS's `reconstruct_batch` prepares anew for each of them: three times as slow."""
        vectors: Scores = self._index.sa_decode(self._stored[rows])
        return vectors

    def _product(self, queries: Scores, k: int, _part: int, start: int, stop: int) -> Hits:
        scores, rows = self._knn(queries, self._stored[start:stop], k)
        return scores, rows + start

    def _coded(self, queries: Scores, k: int, _part: int, start: int, stop: int) -> Hits:
        """FAISS decodes each vector anew for each query, in registers."""
        whole = stop - start == self._index.ntotal
        params: Any = faiss.SearchParameters  # whose arguments the stubs lack
        part_only = None if whole else params(sel=faiss.IDSelectorRange(start, stop, True))
        hits: Hits = self._index.search(queries, k, params=part_only)
        return hits

    def _decoded(self, queries: Scores, k: int, part: int, start: int, stop: int) -> Hits:
        """Block by block. A later block is asked for fewer than k hits: each hit that is kept for a while costs time."""
        best = faiss.ResultHeap(len(queries), k, keep_max=True)
        size = len(self._blocks[part])
        for number, at in enumerate(range(start, stop, size)):
            block = self._blocks[part][: stop - at]
            self._index.sa_decode(self._stored[at : at + len(block)], block)
            most = min(k, len(block))
            share = min(most, first_share(k, number)) if number else most
            hits = self._knn(queries, block, share)
            more = np.flatnonzero(hits[0][:, -1] > best.D[:, 0]) if share < most else np.empty(0, np.int64)
            if len(more):
                hits = widened(hits, more, self._knn(queries[more], block, most))
            best.add_result(hits[0], hits[1] + at)
        best.finalize()
        return best.D, best.I

    def _knn(self, queries: Scores, vectors: Scores, k: int) -> Hits:
        hits: Hits = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        return hits
