"""Chooses nprobe for an index of inverted lists: the fewest lists that a query looks into to reach the recall that is wanted.

Passages of a seeded sample are the queries; a passage is no answer to itself. One scan over the vectors gives their exact answers.
Tasks that search get the queries' vectors: in a bucket each would fetch the files that hold them.
The lists that hold these answers give a lower bound, since what lies in no list that is looked into cannot be found; from there on
nprobe grows by doubled steps until the index itself finds enough, and bisection gives the least. Where no code loses an answer, the bound is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_shard import open_index, set_search_params
from raydense.retrieval.faiss_size import facts_of
from raydense.retrieval.faiss_speed import blas_preferred
from raydense.retrieval.list_scan import search_of
from raydense.retrieval.merge import Hits, Rows, merge_hits
from raydense.retrieval.search_params import with_defaults
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import say
from raydense.runtime.tasks import run_tasks
from raydense.storage import Draft

QUERIES, DEPTH = 256, 100
_AT_ONCE = 16  # queries whose lists are all ordered at once: 12 bytes a list and query
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """The rows (int64 [n], rising) of the passages that are the queries, their vectors (float32 [n, d]), and how many answers each has."""

    rows: Rows
    queries: Floats
    k: int


@dataclass(frozen=True)
class Shard:
    """The name of a shard's file in the draft, and its rows start..stop-1."""

    file: str
    start: int
    stop: int


def choose_nprobe(draft: Draft, empty: str, shards: list[Shard], vectors: Vectors, settings: IndexSettings, memory: int) -> dict[str, Any]:
    """`nprobe` and the `recall` that it gives, for the summary of an index; empty for one without inverted lists, or with `recall=0`.

    `empty` is the name of the trained index without vectors; each task reserves `memory` bytes. The same vectors, seed and index give
    the same, whatever the workers.
    """
    lists = facts_of(settings.factory, vectors.dimension).lists
    if not lists and "recall" in settings.given_keys():
        say(f"index: recall has no effect: {settings.factory} has no inverted lists")
    if not settings.recall or not lists or vectors.rows < 2:
        return {}

    where = vectors.artifact.located, vectors.artifact.fingerprint

    def tasks(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
        return list(run_tasks("index", function, calls, settings.concurrency, memory))

    def take(rows: Rows) -> Floats:
        cuts = np.searchsorted(rows, [shard.start for shard in shards[1:]])
        parts = tasks(taken, [(*where, some) for some in np.split(rows, cuts) if len(some)])
        return np.concatenate([found for _, found in sorted(parts, key=lambda part: part[0])])

    drawn = np.random.default_rng([settings.seed, vectors.rows]).choice(vectors.rows, min(QUERIES, vectors.rows), replace=False)
    rows = np.sort(drawn)
    sample = Sample(rows, take(rows), min(DEPTH, vectors.rows - 1))
    shared = ray.put(sample)  # once: each task would send it again
    answers = others(tasks(exact_hits, [(*where, shared, shard) for shard in shards]), sample)
    (held,) = tasks(held_by_lists, [(draft, empty, shared, answers, ray.put(take(np.unique(answers))))])

    @cache
    def recall(nprobe: int) -> float:
        params = with_defaults(f"nprobe={nprobe}", settings.factory)
        found = tasks(index_hits, [(draft, empty, shared, shard, params) for shard in shards])
        return share_found(others(found, sample), answers)

    nprobe = least_nprobe(recall, held, settings.recall)
    _report(nprobe, recall(nprobe), sample, settings)
    return {"nprobe": nprobe, "recall": round(recall(nprobe), 4)}


def _report(nprobe: int, recall: float, sample: Sample, settings: IndexSettings) -> None:
    found = f"index: nprobe={nprobe} finds {recall:.3f} of the exact best {sample.k} of {len(sample.rows)} passages"
    if recall < settings.recall:
        found += f"; more does not reach {settings.recall:g}: the codes of {settings.factory} lose it, Refine(SQ8) after them keeps it"
    say(found)


def least_nprobe(recall: Callable[[int], float], held: NDArray[np.float64], wanted: float) -> int:
    """The least nprobe whose `recall` is `wanted`; where none is, the one whose lists hold so many answers.

    `held` [lists] is the share of the answers in the first 1, 2, ... lists, which no recall exceeds. What the codes lose changes little
    from one nprobe to the next, so that each recall says where to look next; a recall is a search of the whole index.
    """

    def holding(share: float) -> int:
        return min(int(np.searchsorted(held, share)) + 1, len(held))

    least = holding(wanted)
    low, high, step = least - 1, least, 1
    while recall(high) < wanted:
        lost = held[high - 1] - recall(high)
        if high == len(held) or lost > 1 - wanted:  # what the codes lose, no further list gives back
            return least
        low, high, step = high, min(max(high + step, holding(wanted + lost)), len(held)), 2 * step
    step = 1
    while high - low > 1:
        middle = max((low + high) // 2, high - step)
        low, high, step = (low, middle, 2 * step) if recall(middle) >= wanted else (middle, high, len(held))
    return high


def taken(embeddings: str, fingerprint: str, rows: Rows) -> tuple[int, Floats]:
    """The first of the rows (int64 [n], rising), and the vectors at all of them, float32 [n, d]."""
    return int(rows[0]), Vectors(embeddings, fingerprint=fingerprint).take(rows)


def exact_hits(embeddings: str, fingerprint: str, sample: Sample, shard: Shard) -> Hits:
    """The best of a shard's rows for each vector of the sample, itself among them, by a scan over the vectors in blocks."""
    faiss.omp_set_num_threads(1)
    vectors, queries = Vectors(embeddings, fingerprint=fingerprint), sample.queries
    best = faiss.ResultHeap(len(queries), sample.k + 1, keep_max=True)
    row = shard.start
    with blas_preferred(vectors.dimension):
        for stored in vectors.blocks(shard.start, shard.stop):
            block = np.ascontiguousarray(stored, dtype=np.float32)
            scores, rows = faiss.knn(queries, block, min(sample.k + 1, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
            best.add_result(scores, rows + row)
            row += len(block)
    best.finalize()
    return best.D, best.I


def index_hits(draft: Draft, empty: str, sample: Sample, shard: Shard, search_params: str) -> Hits:
    """What the index of a shard finds for the vectors of the sample."""
    faiss.omp_set_num_threads(1)
    path = draft.read(shard.file)
    index = open_index(path, draft.read(empty))
    set_search_params(index, search_params)
    lists: Any = faiss.try_extract_index_ivf(index)
    with blas_preferred(lists.d):
        scores, rows = search_of(index, 1).search(sample.queries, sample.k + 1)
    return scores, np.where(rows >= 0, rows + shard.start, -1)


def held_by_lists(draft: Draft, empty: str, sample: Sample, answers: Rows, vectors: Floats) -> NDArray[np.float64]:
    """As `covered`, for the vectors of the sample; `vectors` are those of the rows in `answers`, each once, rising."""
    return covered(faiss.read_index(str(draft.read(empty))), sample.queries, answers, lambda rows: vectors)


def others(parts: list[Hits], sample: Sample) -> Rows:
    """The best rows over all shards for each passage of the sample, int64 [n, k], without the passage itself; -1 for none."""
    rows = merge_hits(parts, sample.k + 1)[1]
    own = rows == sample.rows[:, None]
    own[~own.any(axis=1), -1] = True  # not found among its own best, as where others equal it
    return rows[~own].reshape(len(rows), sample.k)


def share_found(rows: Rows, answers: Rows) -> float:
    """The share of the `answers` [n, k] of each query that is among its `rows` [n, m]."""
    return float(np.mean([np.isin(right, found).mean() for found, right in zip(rows, answers, strict=True)]))


def covered(index: Any, queries: Floats, answers: Rows, take: Callable[[Rows], Floats]) -> NDArray[np.float64]:
    """The share of the `answers` [n, k] that lie in the first 1, 2, ... lists of their query, float64 [lists].

    `take` gives the vectors at rows, int64 and rising.
    """
    rows, back = np.unique(answers, return_inverse=True)
    lists, queries = _lists_of(index, queries)
    owner = lists.quantizer.search(_lists_of(index, take(rows))[1], 1)[1].ravel()[back].reshape(answers.shape)
    places = np.zeros(lists.nlist, np.int64)
    for at in range(0, len(queries), _AT_ONCE):
        order = lists.quantizer.search(queries[at : at + _AT_ONCE], lists.nlist)[1]
        for line, held in zip(order, owner[at : at + _AT_ONCE], strict=True):
            place = np.full(lists.nlist, lists.nlist - 1)
            place[line[line >= 0]] = np.flatnonzero(line >= 0)
            np.add.at(places, place[held], 1)
    share: NDArray[np.float64] = np.cumsum(places) / answers.size
    return share


def _lists_of(index: Any, vectors: Floats) -> tuple[Any, Floats]:
    """The inverted lists within an index, and the vectors as they see them, after the transforms before them."""
    while True:
        index = faiss.downcast_index(index)
        if isinstance(index, faiss.IndexPreTransform):
            transforms: Any = index.chain
            for i in range(transforms.size()):
                vectors = faiss.downcast_VectorTransform(transforms.at(i)).apply(vectors)
            index = index.index
        elif isinstance(index, faiss.IndexRefine):
            index = index.base_index
        else:
            return index, vectors
