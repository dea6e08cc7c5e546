"""Searches inverted lists list by list for many queries at once: each list is read and decoded once, and compared by a matrix product.

FAISS takes one query after another, and reads all of its lists for each of them, which is bound by memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydense.retrieval.faiss_speed import best_of, share_out
from raydense.retrieval.merge import Hits, Rows, Scores

_QUERIES_A_LIST = 24  # that look into a list on average, from which on decoding it once is faster
_SHARE = 24  # hits that a list is first asked for: the best k of a query lie in many lists
_ROWS = 2**14  # of a list that are decoded at once


def search_of(faiss: Any, index: Any, threads: int) -> Any:
    """What searches an index fastest: itself, or its lists."""
    lists = isinstance(index, faiss.IndexIVFFlat | faiss.IndexIVFScalarQuantizer) and index.metric_type == faiss.METRIC_INNER_PRODUCT
    return ListScan(faiss, index, threads) if lists else index


class ListScan:
    """Searches an `IVF…,Flat` or `IVF…,SQ…` by inner product: the hits of `faiss.Index.search`, whose scores are rounded otherwise."""

    def __init__(self, faiss: Any, index: Any, threads: int) -> None:
        self._faiss, self._index, self._threads = faiss, index, threads
        self._pool = ThreadPoolExecutor(threads)
        self._lists: Any = index.invlists
        self._sizes = np.array([self._lists.list_size(number) for number in range(index.nlist)])
        self._flat = isinstance(index, faiss.IndexIVFFlat)
        self._residual = not self._flat and index.by_residual

    def search(self, queries: Scores, k: int) -> Hits:
        """As `faiss.Index.search`: scores and rows [n, k], best first, -inf and -1 for none. FAISS searches for few queries."""
        index = self._index
        nprobe = min(index.nprobe, index.nlist)
        if len(queries) * nprobe < _QUERIES_A_LIST * index.nlist or index.max_codes:
            hits: Hits = index.search(queries, k)
            return hits
        coarse, lists = index.quantizer.search(queries, nprobe)
        order = np.argsort(lists, axis=None, kind="stable")
        firsts = np.searchsorted(lists.ravel()[order], np.arange(index.nlist + 1))
        asking, offsets = order // nprobe, coarse.ravel()[order]
        ranges = self._parts(np.cumsum(self._sizes * np.diff(firsts)))

        def search(part: int) -> Hits:
            self._faiss.omp_set_num_threads(1)
            best = self._faiss.ResultHeap(len(queries), k, keep_max=True)
            for number in range(*ranges[part]):
                here = slice(firsts[number], firsts[number + 1])
                if here.start < here.stop:
                    self._search_list(number, queries, asking[here], offsets[here], best)
            best.finalize()
            return best.D, best.I

        found = share_out(self._pool, search, len(ranges))
        return found[0] if len(found) == 1 else best_of(self._faiss, found, k)

    def _parts(self, work: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Ranges of lists with about as much work for each thread; `work` is that of the lists up to each."""
        ends = np.searchsorted(work, work[-1] * np.arange(1, self._threads) / self._threads).tolist()
        return list(zip([0, *ends], [*ends, len(work)], strict=True))

    def _search_list(self, number: int, queries: Scores, asking: Rows, offsets: Scores, best: Any) -> None:
        """Add the best of a list to the hits of the queries numbered `asking`; their scores with its centroid are `offsets`."""
        faiss, size = self._faiss, int(self._sizes[number])
        if not size:
            return
        ids = faiss.rev_swig_ptr(self._lists.get_ids(number), size)
        codes = faiss.rev_swig_ptr(self._lists.get_codes(number), size * self._index.code_size).reshape(size, -1)
        for at in range(0, size, _ROWS):
            part = codes[at : at + _ROWS]
            vectors = part.view(np.float32) if self._flat else self._index.sq.decode(part)
            self._add(vectors, ids[at : at + _ROWS], queries, asking, offsets, best)

    def _add(self, vectors: Scores, ids: Rows, queries: Scores, asking: Rows, offsets: Scores, best: Any) -> None:
        most = min(best.k, len(vectors))
        scores, rows = self._knn(queries[asking], vectors, offsets, min(_SHARE, most))
        worst = best.D[asking, 0]
        if most > _SHARE:
            more = scores[:, -1] > worst
            if more.any():
                best.add_result_subset(asking[more], *self._named(self._knn(queries[asking[more]], vectors, offsets[more], most), ids))
            better = (scores[:, 0] > worst) & ~more
        else:
            better = scores[:, 0] > worst
        if better.any():
            best.add_result_subset(asking[better], *self._named((scores[better], rows[better]), ids))

    def _knn(self, queries: Scores, vectors: Scores, offsets: Scores, k: int) -> Hits:
        scores, rows = self._faiss.knn(queries, vectors, k, metric=self._faiss.METRIC_INNER_PRODUCT)
        if self._residual:
            scores += offsets[:, None]
        return scores, rows

    @staticmethod
    def _named(hits: Hits, ids: Rows) -> Hits:
        return hits[0], ids[hits[1]]
