"""Fills an empty FAISS index with vectors: in the memory of the index itself, and by several threads.

An index that grows takes up to twice its size; here each array gets its full size before it is filled. Each thread encodes another
block, with one thread of FAISS, so that the bytes do not depend on how many there are. A graph is built by one thread: with more,
FAISS adds its nodes in another order. Stored blocks are cut, the same for any number of threads: 64 of them would be 13 GB at 768 dimensions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydense.retrieval.faiss_library import faiss

Block = NDArray[np.floating]

_COMPARED = 4_096  # vectors that FAISS compares with the centroids at once: cut elsewhere, their scores differ in the last bit
MOST_ROWS = 2 * _COMPARED  # that a thread has in work


def is_exact(index: faiss.Index) -> bool:
    """Whether a search of `index` looks at every vector, so that its hits can be put in one order, ties included."""
    return isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer)


def train(owner: Any, vectors: Block, threads: int) -> None:
    """Train an index on float32 [n, d] by up to `threads` threads: by one where the bytes would depend on their number.

    With more, linear algebra (PCA, OPQ) rounds otherwise, and a graph of centroids may be built in another order. RuntimeError on too
    few vectors.
    """
    index: Any = faiss.downcast_index(owner)
    if isinstance(index, faiss.IndexPreTransform):
        chain: Any = index.chain
        faiss.omp_set_num_threads(1)
        for step in (chain.at(i) for i in range(chain.size())):
            if not step.is_trained:
                step.train(vectors)
                _keep_origin(step)
            vectors = step.apply(vectors)
        train(index.index, vectors, threads)
    elif isinstance(index, faiss.IndexRefine):
        train(index.base_index, vectors, threads)
        train(index.refine_index, vectors, threads)
    else:
        lists: Any = faiss.try_extract_index_ivf(index)
        graph = lists is not None and not isinstance(faiss.downcast_index(lists.quantizer), faiss.IndexFlat)
        faiss.omp_set_num_threads(1 if graph else threads)
        index.train(vectors)
    index.is_trained = True


def _keep_origin(owner: Any) -> None:
    """Have a PCA turn vectors about the origin: FAISS moves their mean there, and inner products would be others for each passage."""
    step: Any = faiss.downcast_VectorTransform(owner)
    if isinstance(step, faiss.PCAMatrix):
        step.have_bias = False


def fill(index: Any, rows: int, blocks: Callable[[], Iterable[Block]], threads: int = 1) -> float | None:
    """Add `rows` vectors to an empty, trained index, which then has the bytes that `index.add` of each piece gives with one thread.

    `blocks()` gives them anew at each call, float32 or float16 [n, d], which are cut into `pieces`: inverted lists take two passes.
    Returns the largest norm of a vector as an exact index stores it, None for other indexes.
    """
    faiss.omp_set_num_threads(1)  # of this thread; those of the pool have a setting of their own
    part = part_of(index, rows, threads)
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        if part.surveyed:
            _each(pool, threads, part.survey, pieces(blocks()), _nothing)
            part.make_room()
        _each(pool, threads, part.prepare, pieces(blocks()), part.append)
    part.finish()
    return part.largest_norm if is_exact(index) else None


def part_of(owner: Any, rows: int, threads: int) -> Part:
    """What fills an index, or a part of it."""
    index: Any = faiss.downcast_index(owner)  # the stubs of FAISS lack members of many classes
    if isinstance(index, faiss.IndexPreTransform):
        return _Transformed(index, rows, threads)
    if isinstance(index, faiss.IndexRefine):
        return _Refined(index, rows, threads)
    lists: Any = getattr(index, "invlists", None)
    if isinstance(index, faiss.IndexIVF) and isinstance(faiss.downcast_InvertedLists(lists), faiss.ArrayInvertedLists):
        return _Lists(index, rows, threads)
    if isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer | faiss.IndexRaBitQ | faiss.IndexPQ):
        return _Codes(index, rows, threads)
    return Part(index, rows, threads)


def pieces(blocks: Iterable[Block]) -> Iterator[tuple[int, Block]]:
    """Each block in pieces of fewer than `MOST_ROWS` vectors, with the first row of each."""
    first = 0
    for block in blocks:
        size = len(block)
        yield from ((first + a, block[a:b]) for a, b in pairwise([0, *range(_COMPARED, size - _COMPARED + 1, _COMPARED), size]))
        first += size


def has_work_for_threads(index: Any) -> bool:
    """Whether several threads fill an index in less time than one."""
    return part_of(index, 0, 1).parallel


class Part:
    """An index to which one thread adds blocks in order: a graph, or one of a kind that is not known better.

    `prepare` is called by any thread with the first row and the vectors of a block; `append` in order with what it returned. Where
    `surveyed`, all blocks go through `survey` first. `parallel` means that most of the work is not in `append`.
    """

    surveyed, parallel, largest_norm = False, False, 0.0

    def __init__(self, index: Any, rows: int, threads: int) -> None:
        self.index, self.rows, self.threads = index, rows, threads
        storage = index
        if isinstance(index, faiss.IndexHNSW):
            graph: Any = index.hnsw
            storage = faiss.downcast_index(index.storage)
            _reserve(graph.neighbors, int(links(graph) * rows * 1.01) + 1_000)
        if isinstance(storage, faiss.IndexFlatCodes):
            _reserve(storage.codes, rows * storage.code_size)

    def survey(self, start: int, block: Block) -> None:
        """A first look at a block."""

    def make_room(self) -> None:
        """Called after the survey."""

    def prepare(self, start: int, block: Block) -> Any:
        return block

    def append(self, start: int, prepared: Any) -> None:
        self.index.add(prepared)

    def finish(self) -> None:
        self.index.ntotal = self.rows


class _Codes(Part):
    """An index that is one array of codes: each thread writes those of its block in place."""

    parallel = True

    def __init__(self, index: Any, rows: int, threads: int) -> None:
        self.index, self.rows, self.threads = index, rows, threads
        self._exact = is_exact(index)
        index.codes.resize(rows * index.code_size)
        self._codes = faiss.rev_swig_ptr(index.codes.data(), rows * index.code_size).reshape(rows, index.code_size)

    def prepare(self, start: int, block: Block) -> float:
        codes = self._codes[start : start + len(block)]
        self.index.sa_encode(block, codes=codes)
        if not self._exact:
            return 0.0
        stored = codes.view(np.float32) if isinstance(self.index, faiss.IndexFlat) else self.index.sa_decode(codes)
        return float(np.sqrt(np.einsum("nd,nd->n", stored, stored).max()))

    def append(self, start: int, prepared: float) -> None:
        self.largest_norm = max(self.largest_norm, prepared)


class _Lists(Part):
    """Inverted lists: a first pass finds the list of each vector, by several threads; lists of the right length are then filled."""

    surveyed = parallel = True

    def __init__(self, index: Any, rows: int, threads: int) -> None:
        self.index, self.rows, self.threads = index, rows, threads
        self._quantizer = faiss.downcast_index(index.quantizer)
        self._by_list = isinstance(index, faiss.IndexIVFFlat | faiss.IndexIVFScalarQuantizer | faiss.IndexIVFRaBitQ)
        self._numbers = np.empty(rows, np.int32)

    def survey(self, start: int, block: Block) -> None:
        self._numbers[start : start + len(block)] = self._quantizer.assign(block, 1).ravel()

    def make_room(self) -> None:
        lists = self.index.invlists
        for number, size in enumerate(np.bincount(self._numbers, minlength=self.index.nlist).tolist()):
            lists.resize(number, size)
            lists.resize(number, 0)

    def append(self, start: int, prepared: Block) -> None:
        """FAISS's threads each fill lists of their own."""
        faiss.omp_set_num_threads(self.threads if self._by_list else 1)
        numbers = self._numbers[start : start + len(prepared)].astype(np.int64)
        self.index.add_core(len(prepared), faiss.swig_ptr(prepared), None, faiss.swig_ptr(numbers))


class _Transformed(Part):
    """Another index behind transformations of the vectors."""

    def __init__(self, index: Any, rows: int, threads: int) -> None:
        self.index, self.rows, self.threads = index, rows, threads
        self._inner = part_of(index.index, rows, threads)
        self.surveyed, self.parallel = self._inner.surveyed, self._inner.parallel

    def _apply(self, block: Block) -> Block:
        for i in range(self.index.chain.size()):
            block = self.index.chain.at(i).apply(block)
        return block

    def survey(self, start: int, block: Block) -> None:
        self._inner.survey(start, self._apply(block))

    def make_room(self) -> None:
        self._inner.make_room()

    def prepare(self, start: int, block: Block) -> Any:
        return self._inner.prepare(start, self._apply(block))

    def append(self, start: int, prepared: Any) -> None:
        self._inner.append(start, prepared)

    def finish(self) -> None:
        super().finish()
        self._inner.finish()


class _Refined(Part):
    """An index with a second one of larger codes, which scores its hits again."""

    def __init__(self, index: Any, rows: int, threads: int) -> None:
        self.index, self.rows, self.threads = index, rows, threads
        self._parts = [part_of(one, rows, threads) for one in (index.base_index, index.refine_index)]
        self.surveyed = any(part.surveyed for part in self._parts)
        self.parallel = self._parts[0].parallel  # the codes that refine are little work

    def survey(self, start: int, block: Block) -> None:
        for part in self._parts:
            part.survey(start, block)

    def make_room(self) -> None:
        for part in self._parts:
            part.make_room()

    def prepare(self, start: int, block: Block) -> list[Any]:
        return [part.prepare(start, block) for part in self._parts]

    def append(self, start: int, prepared: list[Any]) -> None:
        for part, one in zip(self._parts, prepared, strict=True):
            part.append(start, one)

    def finish(self) -> None:
        super().finish()
        for part in self._parts:
            part.finish()


def _each(
    pool: ThreadPoolExecutor,
    threads: int,
    work: Callable[[int, Block], Any],
    blocks: Iterable[tuple[int, Block]],
    then: Callable[[int, Any], None],
) -> None:
    """Call `work` by the pool's threads, and `then` with each result in the order of the blocks, few of which are held at once."""
    running: deque[tuple[int, Future[Any]]] = deque()
    for start, block in blocks:
        running.append((start, pool.submit(_as_float32, work, start, block)))
        if len(running) > threads:
            first, future = running.popleft()
            then(first, future.result())
    for first, future in running:
        then(first, future.result())


def _as_float32(work: Callable[[int, Block], Any], start: int, block: Block) -> Any:
    return work(start, np.ascontiguousarray(block, dtype=np.float32))


def _nothing(start: int, result: None) -> None:
    pass


def _reserve(array: Any, size: int) -> None:
    """Give an array of FAISS memory for `size` elements; it stays empty."""
    array.resize(size)
    array.resize(0)


def links(hnsw: Any) -> float:
    """The expected neighbours of a vector in a graph: one of level n has those of the levels 0 to n."""
    levels = range(hnsw.assign_probas.size())
    return sum(float(hnsw.assign_probas.at(level) * hnsw.cum_nneighbor_per_level.at(level + 1)) for level in levels)
