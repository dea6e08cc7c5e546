"""Searches inverted lists list by list for many queries at once: each list is read and decoded once, and compared by a matrix product.

FAISS takes one query after another, and reads all of its lists for each of them, which is bound by memory. BLAS rounds a product by how
many queries it has at once, so what is compared with what follows from the queries alone: any number of threads gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_speed import best_of, joined, share_out
from raydense.retrieval.merge import Hits, Rows, Scores, no_hits, order_hits
from raydense.runtime.tasks import shard_ranges

_QUERIES_A_LIST = 24  # that look into a list on average, from which on decoding it once is faster
_SHARE = 24  # hits that a list is first asked for, at least: the best k of a query lie in many lists
_ROWS = 2**14  # of a list that are decoded at once; and of the least part of flat vectors
_PARTS = 16  # of flat vectors, at most
_HITS_BYTES, _HIT_BYTES = 96 * 2**20, 20  # of a call; of a hit: score, row, and its number while the best are chosen
_FEW = 8  # queries that are transformed, or compared with the centroids, at once: of a small block, which threads share
_MANY = 64  # the same of a large block


def search_of(index: Any, threads: int) -> Any:
    """What searches an index fastest, and with the same bytes for any number of threads where FAISS leaves that to the caller."""
    if isinstance(index, faiss.IndexPreTransform):
        return _Transformed(index, threads)
    if isinstance(index, faiss.IndexRefine):
        return _Refined(index, threads)
    lists = isinstance(index, faiss.IndexIVF) and not isinstance(index, faiss.IndexIVFFastScan | faiss.IndexIVFPQR)
    return ListScan(index, threads) if lists and index.metric_type == faiss.METRIC_INNER_PRODUCT else index


class _Transformed:
    """Searches what is behind transformations."""

    def __init__(self, index: Any, threads: int) -> None:
        self._index, self._threads = index, threads
        self._pool = ThreadPoolExecutor(threads)
        inner = faiss.downcast_index(index.index)
        self._searched = _Flat(inner, threads) if isinstance(inner, faiss.IndexFlat) else search_of(inner, threads)

    def search(self, queries: Scores, k: int) -> Hits:
        """As `faiss.Index.search`."""
        transformed = np.empty((len(queries), self._index.index.d), np.float32)

        def transform(part: slice) -> None:
            block = queries[part]
            for step in range(self._index.chain.size()):
                block = self._index.chain.at(step).apply(block)
            transformed[part] = block

        _by_threads(self._pool, transform, _few_at_once(len(queries)))
        faiss.omp_set_num_threads(self._threads)
        hits: Hits = self._searched.search(transformed, k)
        return hits


class _Flat:
    """Searches vectors whose scores nobody computes again, part by part: FAISS's threads would cut the products by their number."""

    def __init__(self, index: Any, threads: int) -> None:
        self._index = index
        self._pool = ThreadPoolExecutor(threads)
        self._parts = shard_ranges(index.ntotal, max(1, min(_PARTS, index.ntotal // _ROWS)))

    def search(self, queries: Scores, k: int) -> Hits:
        """As `faiss.Index.search`, k at most the rows."""
        step = max(_MANY, _HITS_BYTES // (_HIT_BYTES * len(self._parts) * k))
        return joined([self._search(queries[part], k) for part in _slices(len(queries), step)])

    def _search(self, queries: Scores, k: int) -> Hits:
        stored = faiss.rev_swig_ptr(self._index.get_xb(), self._index.ntotal * self._index.d).reshape(-1, self._index.d)

        def search(number: int) -> Hits:
            faiss.omp_set_num_threads(1)
            start, stop = self._parts[number]
            scores, rows = faiss.knn(queries, stored[start:stop], min(k, stop - start), metric=faiss.METRIC_INNER_PRODUCT)
            return scores, rows + start

        found = share_out(self._pool, search, len(self._parts))
        return found[0] if len(found) == 1 else best_of(found, k)


class _Refined:
    """Searches an index whose hits a second one scores again: first for some times k, so that a large k is asked for few queries at once."""

    def __init__(self, index: Any, threads: int) -> None:
        self._index, self._threads = index, threads

    def search(self, queries: Scores, k: int) -> Hits:
        """As `faiss.Index.search`."""
        faiss.omp_set_num_threads(self._threads)
        step = max(_MANY, int(_HITS_BYTES // (_HIT_BYTES * k * self._index.k_factor)))
        return joined([self._index.search(queries[part], k) for part in _slices(len(queries), step)])


class ListScan:
    """Searches inverted lists by inner product: the hits of `faiss.Index.search`. The scores of `IVF…,Flat` and `IVF…,SQ…` are rounded otherwise."""

    def __init__(self, index: Any, threads: int) -> None:
        self._index, self._threads = index, threads
        self._pool = ThreadPoolExecutor(threads)
        self._lists: Any = index.invlists
        self._sizes = np.array([self._lists.list_size(number) for number in range(index.nlist)])
        self._flat = type(index) is faiss.IndexIVFFlat  # those derived of it keep codes in another layout
        self._decodes = self._flat or isinstance(index, faiss.IndexIVFScalarQuantizer)
        self._residual = not self._flat and index.by_residual

    def search(self, queries: Scores, k: int) -> Hits:
        """As `faiss.Index.search`: scores and rows [n, k], best first, -1 for none. FAISS searches for few queries, and for other codes."""
        index = self._index
        nprobe = min(index.nprobe, index.nlist)
        coarse, lists = self._nearest_lists(queries, nprobe)
        if not self._decodes or len(queries) * nprobe < _QUERIES_A_LIST * index.nlist or index.max_codes:
            faiss.omp_set_num_threads(self._threads)
            hits: Hits = index.search_preassigned(queries, k, lists, coarse)
            return hits
        share = min(k, max(_SHARE, -(-2 * k // nprobe)))
        step = max(1, _HITS_BYTES // (_HIT_BYTES * (nprobe * share + k // share * k)))
        return joined([self._search(queries[part], k, share, coarse[part], lists[part]) for part in _slices(len(queries), step)])

    def _nearest_lists(self, queries: Scores, nprobe: int) -> Hits:
        coarse, lists = no_hits(len(queries), nprobe)

        def search(part: slice) -> None:
            coarse[part], lists[part] = self._index.quantizer.search(queries[part], nprobe)

        self._share_out(search, _few_at_once(len(queries)))
        return coarse, lists

    def _search(self, queries: Scores, k: int, share: int, coarse: Scores, lists: Rows) -> Hits:
        """First the best `share` of each list; then the best k of those lists that may hold more of a query's best k."""
        count, nprobe = lists.shape
        scores, rows = no_hits(count * nprobe, share)
        self._look(queries, lists, coarse, np.arange(count * nprobe), scores, rows)
        best, kept = no_hits(count, k)
        more = np.zeros((count, nprobe), bool)

        def select(part: slice) -> None:
            ours = scores.reshape(count, -1)[part]
            width = min(k, ours.shape[1])
            columns = np.argpartition(ours, ours.shape[1] - width, axis=1)[:, ours.shape[1] - width :]
            best[part, :width] = np.take_along_axis(ours, columns, axis=1)
            kept[part, :width] = columns
            last = ours.reshape(len(ours), nprobe, share)[:, :, -1]
            more[part] = (last >= best[part].min(axis=1, keepdims=True)) & (self._sizes[lists[part]] > share) & (lists[part] >= 0)

        slices = _slices(count, -(-count // self._threads))
        self._share_out(select, slices)
        if share == k:
            more[:] = False
        pairs = np.flatnonzero(more)
        places = (np.cumsum(more, axis=1) - 1).ravel()[pairs]
        wider, wider_rows = no_hits(len(pairs), k)
        self._look(queries, lists, coarse, pairs, wider, wider_rows)
        others, other_rows = no_hits(count * int(more.sum(axis=1).max(initial=0)), k)
        slots = pairs // nprobe * (len(others) // count) + places
        others[slots], other_rows[slots] = wider, wider_rows

        def order(part: slice) -> None:
            columns = kept[part]
            own = np.where(columns >= 0, np.take_along_axis(rows.reshape(count, -1)[part], np.maximum(columns, 0), axis=1), -1)
            own[np.take_along_axis(more[part], np.maximum(columns, 0) // share, axis=1)] = -1
            all_scores = np.concatenate([best[part], others.reshape(count, -1)[part]], axis=1)
            best[part], kept[part] = order_hits(all_scores, np.concatenate([own, other_rows.reshape(count, -1)[part]], axis=1), k)

        self._share_out(order, slices)
        return best, kept

    def _look(self, queries: Scores, lists: Rows, coarse: Scores, pairs: Rows, scores: Scores, rows: Rows) -> None:
        """Put the best of the list of each of the `pairs` of a query and a list, int64 [p], into its line of `scores` and `rows` [p, w]."""
        numbers = lists.ravel()[pairs]
        order = np.argsort(numbers, kind="stable")
        firsts = np.searchsorted(numbers[order], np.arange(self._index.nlist + 1))
        work = np.cumsum(self._sizes * np.diff(firsts))

        def look(part: slice) -> None:
            for number in range(part.start, part.stop):
                lines = order[firsts[number] : firsts[number + 1]]
                if len(lines) and self._sizes[number]:
                    asking = pairs[lines]
                    found = self._best_of_list(number, queries[asking // lists.shape[1]], scores.shape[1])
                    if self._residual:
                        found[0][:] += coarse.ravel()[asking][:, None]
                    scores[lines, : found[0].shape[1]], rows[lines, : found[0].shape[1]] = found

        if len(pairs):
            ends = np.searchsorted(work, work[-1] * np.arange(1, self._threads) / self._threads).tolist()
            self._share_out(look, [slice(*ends) for ends in zip([0, *ends], [*ends, len(work)], strict=True)])

    def _best_of_list(self, number: int, queries: Scores, k: int) -> Hits:
        """The best k of a list, or all of it; scores without those of its centroid."""
        size = int(self._sizes[number])
        ids = faiss.rev_swig_ptr(self._lists.get_ids(number), size)
        codes = faiss.rev_swig_ptr(self._lists.get_codes(number), size * self._index.code_size).reshape(size, -1)
        found = []
        for at in range(0, size, _ROWS):
            part = codes[at : at + _ROWS]
            vectors = part.view(np.float32) if self._flat else self._index.sq.decode(part)
            scores, rows = faiss.knn(queries, vectors, min(k, len(part)), metric=faiss.METRIC_INNER_PRODUCT)
            found.append((scores, ids[at + rows]))
        return found[0] if len(found) == 1 else best_of(found, min(k, size))

    def _share_out(self, work: Callable[[slice], None], parts: list[slice]) -> None:
        _by_threads(self._pool, work, parts)


def _by_threads(pool: ThreadPoolExecutor, work: Callable[[slice], None], parts: list[slice]) -> None:
    """Each part by one thread of the pool, with one of OpenMP."""

    def one(number: int) -> None:
        faiss.omp_set_num_threads(1)
        work(parts[number])

    share_out(pool, one, len(parts))


def _few_at_once(queries: int) -> list[slice]:
    """Parts of the queries that do not depend on the threads."""
    return _slices(queries, _MANY if queries > _FEW * _MANY else _FEW)


def _slices(count: int, step: int) -> list[slice]:
    """`count` cut evenly into parts of at most `step`."""
    return [slice(*ends) for ends in shard_ranges(count, max(1, -(-count // step)))]
