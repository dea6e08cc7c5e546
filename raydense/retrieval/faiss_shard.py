"""One FAISS shard, opened memory-mapped where FAISS can, and searched in an order that does not depend on the sharding.

FAISS breaks ties at the k-th place arbitrarily, and BLAS gives equal vectors scores that differ in the last bit. So an exact
index (Flat, SQ) is asked for a few more hits (`nearest`), the pool picks the rows that may be among the best k, and `rescore` sums
each pair's product in one order, independent of the batch. `exact` decides cases that are still open. For a small block all hits are
rescored at once, which saves the caller a second call.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from raydense.errors import InputError
from raydense.retrieval.faiss_fill import is_exact
from raydense.retrieval.faiss_gpu import to_gpu
from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_speed import Scan, blas_preferred, share_out
from raydense.retrieval.gpu import LARGEST_HALF, LARGEST_K
from raydense.retrieval.list_scan import search_of
from raydense.retrieval.merge import MARGIN, Hits, Rows, Scores, no_hits, order_hits, top_k
from raydense.runtime.tasks import shard_ranges

_WIDER = 16
_PAIRS = 8_192  # whose vectors, decoded, stay in the processor's cache
_QUERIES = 64
_ALONE = 2**20  # multiplications of pairs that are worth a thread


class FaissShard:
    """The vectors of rows start..start+ntotal-1; returns global rows."""

    def __init__(self, path: str, start: int, threads: int, search_params: str = "", empty: str | None = None) -> None:
        self._threads, self._pool = threads, ThreadPoolExecutor(threads)
        self.start = start
        self.index = open_index(Path(path), Path(empty) if empty else None)
        if self.index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(
                "has L2 distances in place of inner products: its worst hits come first", path, "index again by another factory"
            )
        self.rows: int = self.index.ntotal
        self._scanner = Scan(self.index, threads) if is_exact(self.index) else None
        self._searcher: Any = self._scanner or search_of(self.index, threads)
        if search_params:
            set_search_params(self.index, search_params)
        self._on_gpu: Any = None
        self._half, self._one_at_a_time = False, Lock()

    def load_on_gpu(self, factory: str, half: bool, temporary: int, search_params: str) -> None:
        """Search a copy on the GPU from now on, in float16 with `half`, where it takes the k; the CPU keeps scoring and settling."""
        self._on_gpu, self._half = to_gpu(self.index, factory, half, temporary, search_params), half

    def nearest(self, queries: Scores, k: int, rescored: bool = False) -> Hits:
        """FAISS's hits in its order: float32 and global rows int64, [n, min(k, rows)]; -inf and -1 for none.

        With `rescored` the scores are those of `rescore`, in the same order.
        """
        k = min(k, self.rows)
        faiss.omp_set_num_threads(self._threads)  # the setting is per thread, and an actor has several
        if self._takes_gpu(queries, k):
            with self._one_at_a_time:  # FAISS's indexes on a GPU are not for several threads, those on a CPU are
                scores, rows = self._on_gpu.search(queries, k)
        else:
            with blas_preferred(self.index.d):
                scores, rows = self._searcher.search(queries, k)
        found = rows >= 0
        rows = np.where(found, rows + self.start, -1)
        scores = self.rescore(queries, rows) if rescored else np.where(found, scores, -np.inf).astype(np.float32, copy=False)
        return scores, rows

    def _takes_gpu(self, queries: Scores, k: int) -> bool:
        fits = self._on_gpu is not None and k <= LARGEST_K
        return fits and not (self._half and float(np.abs(queries).max(initial=0)) > LARGEST_HALF)

    def rescore(self, queries: Scores, rows: Rows) -> Scores:
        """The score of each query [n, d] with each of its rows [n, w], float32 [n, w]; -inf where a row is -1 or not of this shard."""
        scores = np.full(rows.shape, -np.inf, np.float32)
        parts = shard_ranges(len(rows), max(1, min(self._threads, len(rows), rows.size * queries.shape[1] // _ALONE)))

        def rescore(number: int) -> None:
            faiss.omp_set_num_threads(1)  # OpenMP's threads wait for the next work at full speed
            start, stop = parts[number]
            step = max(1, _PAIRS // max(1, rows.shape[1]))
            for part in (slice(at, min(at + step, stop)) for at in range(start, stop, step)):
                local = rows[part] - self.start
                scores[part] = self._score(queries[part], np.where((rows[part] >= 0) & (local >= 0) & (local < self.rows), local, -1))

        share_out(self._pool, rescore, len(parts))
        return scores

    def _score(self, queries: Scores, local: Rows) -> Scores:
        """One dot product per pair, so that a score depends only on its query and its vector; row -1 gives -inf."""
        local = np.ascontiguousarray(local)
        scores = np.empty(local.shape, np.float32)
        if isinstance(self.index, faiss.IndexFlat):
            vectors = self.index.get_xb()
        else:
            used = local >= 0
            decoded = (self._scanner.decoded if self._scanner else self.index.reconstruct_batch)(local[used])
            local = np.full(local.shape, -1, np.int64)
            local[used] = np.arange(len(decoded))
            vectors = faiss.swig_ptr(decoded)
        shape = queries.shape[1], len(queries), local.shape[1]
        library: Any = faiss  # whose stubs lack the function
        library.fvec_inner_products_by_idx(faiss.swig_ptr(scores), faiss.swig_ptr(queries), vectors, faiss.swig_ptr(local), *shape)
        return np.where(local >= 0, scores, -np.inf).astype(np.float32, copy=False)

    def exact(self, queries: Scores, k: int, bound: Scores) -> Hits:
        """This shard's best k by score falling, then row rising, for queries [n, d] whose ties reach beyond the margin.

        `bound` [n] is how far a score of FAISS may be off (`merge.rounding_bound`).
        """
        best = no_hits(len(queries), k)
        for at in range(0, len(queries), _QUERIES):
            part = slice(at, at + _QUERIES)
            best[0][part], best[1][part] = self._exact(queries[part], k, bound[part])
        return best

    def _exact(self, queries: Scores, k: int, bound: Scores) -> Hits:
        wider = _WIDER * (k + MARGIN)
        if self._on_gpu is not None and 2 * (k + MARGIN) <= LARGEST_K:  # of fewer the last would be as close: a scan for each query
            wider = min(wider, LARGEST_K)
        rough, rows = self.nearest(queries, wider)
        best = order_hits(self.rescore(queries, rows), rows, k)
        if rough.shape[1] < self.rows:
            for i in np.flatnonzero(rough[:, -1] >= rough[:, k - 1] - 2 * bound):
                best[0][i], best[1][i] = self._scan(queries[i : i + 1], k)
        return best

    def _scan(self, query: Scores, k: int) -> Hits:
        """The best k of one query [1, d] by a scan of all vectors: slow but certain."""
        scores, rows = np.empty(0, np.float32), np.empty(0, np.int64)
        for at in range(0, self.rows, _PAIRS):
            local = np.arange(at, min(at + _PAIRS, self.rows))
            scores, rows = top_k(np.append(scores, self._score(query, local[None])[0]), np.append(rows, local + self.start), k)
        return scores, rows


def open_index(path: Path, empty: Path | None = None) -> Any:
    """The index in a file; its vectors stay in the file and are mapped where FAISS can: flat and graph codes, inverted lists.

    `empty` is the same index without vectors; by default `empty.faiss` next to the file.
    """
    lists = faiss.try_extract_index_ivf(faiss.read_index(str(empty or path.with_name("empty.faiss"))))
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP if lists is not None else faiss.IO_FLAG_MMAP_IFC)


def set_search_params(index: Any, text: Any) -> None:
    """Set FAISS search parameters (`nprobe=32`, `efSearch=128`, several with commas); InputError if the index does not take them."""
    try:
        faiss.ParameterSpace().set_index_parameters(index, text)
    except RuntimeError as error:
        what = f"a {type(index).__name__} does not take {text!r}"
        raise InputError(what, "search_params", "IVF takes nprobe=N, HNSW efSearch=N, Refine k_factor_rf=N; a Flat index none") from error
