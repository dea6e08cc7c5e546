"""What is known of a FAISS index before it is made: its size, what trains it, its lists; from an untrained index of its factory string."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from raydense.errors import InputError
from raydense.retrieval.faiss_fill import has_work_for_threads, links
from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_shard import set_search_params
from raydense.retrieval.search_params import with_defaults

_ID, _NODE = 8, 12  # the id of an entry of an inverted list; offset and level of a vector in a graph
_OTHER_SCORES = {  # parts of a factory string
    "L2norm": ("normalises vectors", "leave out L2norm: a model of cosine similarity normalises its vectors itself"),
    "PCAW": ("whitens vectors", "use PCA or PCAR"),
    "ITQ": ("normalises vectors", "use PCA, RR or OPQ"),
    "_direct": ("rounds the numbers of vectors to whole ones", "use SQ8"),
}
_PACK = 32  # vectors that fast-scan lists keep together: a list ends with half of that free on average


@dataclass(frozen=True)
class IndexSize:
    """The bytes of each vector, and what every shard has besides: centroids, codebooks, matrices."""

    vector: float
    fixed: int

    def of(self, rows: int) -> int:
        """The bytes of a shard of `rows` vectors: of its file, and of memory once all of it is read."""
        return self.fixed + math.ceil(self.vector * rows)

    def __add__(self, other: IndexSize) -> IndexSize:
        return IndexSize(self.vector + other.vector, self.fixed + other.fixed)


@dataclass(frozen=True)
class IndexFacts:
    """Its size, within a few percent of its files; whether it needs no training, and otherwise how many vectors at least.

    And whether it has inverted lists, and several threads fill it in less time than one.
    """

    size: IndexSize
    trained: bool
    least: int
    lists: bool
    parallel: bool


@lru_cache(maxsize=64)
def facts_of(factory: str, dimension: int) -> IndexFacts:
    """The facts of an index of `factory`, which is made once: one of many lists takes a second. InputError as `index_of`."""
    index = index_of(factory, dimension)
    lists = faiss.try_extract_index_ivf(index) is not None
    return IndexFacts(_size(index), index.is_trained, least_trained(index), lists, has_work_for_threads(index))


def index_of(factory: str, dimension: int) -> Any:
    """An untrained index; InputError on a factory string that FAISS does not know.

    Or whose index is filled only at once, has own ids, or has other scores than inner products of the vectors.
    """
    for part, (does, fix) in _OTHER_SCORES.items():
        if part in factory:
            raise InputError(f"{factory!r} {does}, and their scores are inner products as the model was trained for", "factory", fix)
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        faiss.clone_index(index)
        if not isinstance(_inner(index), faiss.IndexNSG):
            _size(index)
    except RuntimeError as error:
        raise InputError(f"FAISS cannot make {factory!r}: {reason(error)}", "factory", "as Flat, SQfp16, IVF4096,Flat") from None
    if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
        raise InputError(f"{factory!r} brings its own ids", "factory", "leave out IDMap: rows are the ids")
    inner = _inner(index)
    if isinstance(inner, faiss.IndexNSG):
        raise InputError(f"FAISS fills {factory!r} only at once, and an index is filled block by block", "factory", "use HNSW, as HNSW32")
    if inner.metric_type != faiss.METRIC_INNER_PRODUCT:  # whatever was asked for
        raise InputError(f"FAISS makes {factory!r} for L2 distances only", "factory", "use HNSW32_SQ8, or lists of PQ, as IVF4096,PQ64")
    return index


def check_factory(factory: str, search_params: str, dimension: int) -> None:
    """InputError where FAISS makes no index of vectors of a dimension by `factory`, or it does not take the search parameters."""
    index = index_of(factory, dimension)
    if used := with_defaults(search_params, factory):
        set_search_params(index, used)


def _inner(owner: Any) -> Any:
    """The index behind transformations and refinements."""
    index: Any = faiss.downcast_index(owner)
    if isinstance(index, faiss.IndexPreTransform):
        return _inner(index.index)
    return _inner(index.base_index) if isinstance(index, faiss.IndexRefine) else index


def reason(error: RuntimeError) -> str:
    """What FAISS reports, without the place in its source."""
    return str(error).partition(".cpp:")[2].partition(": ")[2] or str(error)


def size_of(factory: str, dimension: int) -> IndexSize:
    """The size of an index of `factory`. InputError as `index_of`."""
    return facts_of(factory, dimension).size


def least_trained(owner: Any) -> int:
    """The fewest vectors that train an index: the centroids of its largest k-means, or the directions of its PCA.

    1 for codes that are not known here; FAISS itself may refuse them later.
    """
    index: Any = faiss.downcast_index(owner)
    if isinstance(index, faiss.IndexPreTransform):
        return max(*map(_least_of_step, _steps(index)), least_trained(index.index))
    if isinstance(index, faiss.IndexRefine):
        return max(least_trained(index.base_index), least_trained(index.refine_index))
    codes = index.pq.ksub if isinstance(getattr(index, "pq", None), faiss.ProductQuantizer) else 1
    return max(codes, index.nlist) if isinstance(index, faiss.IndexIVF) else codes


def _least_of_step(step: Any) -> int:
    if isinstance(step, faiss.OPQMatrix):
        return step.pq.ksub if step.pq else 256  # of 8 bits, where it makes a quantiser of its own
    return step.d_out if isinstance(step, faiss.PCAMatrix) else 1


def _steps(index: Any) -> list[Any]:
    """The transformations before an index."""
    return [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]


def _size(owner: Any) -> IndexSize:
    index: Any = faiss.downcast_index(owner)  # which does not keep `owner` alive
    if isinstance(index, faiss.IndexPreTransform):
        matrices = sum(4 * step.d_in * step.d_out for step in _steps(index) if isinstance(step, faiss.LinearTransform))
        return _size(index.index) + IndexSize(0, matrices)
    if isinstance(index, faiss.IndexRefine):
        return _size(index.base_index) + _size(index.refine_index)
    if isinstance(index, faiss.IndexHNSW):
        return _size(index.storage) + IndexSize(_NODE + 4 * links(index.hnsw), 0)
    if isinstance(index, faiss.IndexNSG):  # of centroids
        graph: Any = index
        return _size(graph.storage) + IndexSize(4 * index.nsg.R, 0)
    if isinstance(index, faiss.IndexIVF):
        centroids = _size(index.quantizer)
        free = _PACK / 2 * index.code_size * index.nlist if isinstance(index, faiss.IndexIVFFastScan) else 0
        return IndexSize(index.code_size + _ID, centroids.of(index.nlist) + _codebooks(index) + 8 * index.nlist + round(free))
    return IndexSize(index.sa_code_size(), _codebooks(index))


def _codebooks(index: Any) -> int:
    """The bytes of what an index learns for its codes; a product quantiser of inverted lists has its own."""
    if isinstance(getattr(index, "pq", None), faiss.ProductQuantizer):
        return 4 * index.pq.d * index.pq.ksub
    return 8 * index.d if hasattr(index, "sq") or hasattr(index, "rabitq") else 0
