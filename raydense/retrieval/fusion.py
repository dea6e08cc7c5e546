"""The hits of several runs for the same queries, fused: by reciprocal ranks, or by a weighted sum of scores. Arithmetic on arrays.

Reciprocal rank fusion is that of Cormack et al. 2009: 1 / (60 + rank), summed. The weighted sum with scores as they are is DPR's hybrid
(Karpukhin et al. 2020, section 5.1), where a passage that a run lacks has the lowest score of that run for the query; with scores from 0 to 1
in each list (min-max) such a passage has 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydense.retrieval.merge import Rows

RANK_CONSTANT = 60  # Cormack et al. 2009

Parts = NDArray[np.float64]


@dataclass(frozen=True)
class Hits:
    """Hits of one run, the rows of a query adjacent: int64 number of the query, int64 number of the passage, int32 rank, float32 score; all [n]."""

    query: Rows
    passage: Rows
    rank: NDArray[np.int32]
    score: NDArray[np.float32]


@dataclass(frozen=True)
class Pooled:
    """The passages of each query in any run: int64 [n], by query and then passage; and what each run says of them, float64 [runs, n]."""

    query: Rows
    passage: Rows
    parts: Parts

    def fused(self, weights: Sequence[float], most: int) -> Hits:
        """The first `most` passages of each query by the weighted sum of their parts; of equal ones that with the greater number first."""
        total = np.zeros(len(self.query))
        # not as a product of matrices, whose last digits depend on how many rows there are
        for weight, part in zip(weights, self.parts, strict=True):
            total += weight * part
        score = total.astype(np.float32)
        order = np.lexsort((-self.passage, -score, self.query))
        query = self.query[order]
        rank = np.arange(len(order)) - np.searchsorted(query, query) + 1
        kept = rank <= most
        order = order[kept]
        return Hits(query[kept], self.passage[order], rank[kept].astype(np.int32), score[order])


def by_rank(runs: Sequence[Hits]) -> Pooled:
    """The reciprocal of each rank, shifted by RANK_CONSTANT; 0 for a passage that the run lacks."""
    return _pooled(runs, [1.0 / (RANK_CONSTANT + hits.rank) for hits in runs], [np.zeros(len(hits.rank)) for hits in runs])


def by_score(runs: Sequence[Hits], scale: bool) -> Pooled:
    """Scores, with `scale` from 0 to 1 in the list of each query and run; the lowest of the list for a passage that the run lacks."""
    values, lowest = [], []
    for hits in runs:
        score, starts = hits.score.astype(np.float64), np.flatnonzero(np.diff(hits.query, prepend=-1))
        sizes = np.diff(starts, append=len(score))
        low = np.repeat(np.minimum.reduceat(score, starts), sizes) if len(score) else score
        if scale and len(score):
            width = np.repeat(np.maximum.reduceat(score, starts), sizes) - low
            score, low = np.where(width > 0, (score - low) / np.where(width > 0, width, 1.0), 1.0), np.zeros_like(low)
        values.append(score)
        lowest.append(low)
    return _pooled(runs, values, lowest)


def spread(hits: Hits) -> float:
    """The highest less the lowest score of each query, summed."""
    if not len(hits.score):
        return 0.0
    score, starts = hits.score.astype(np.float64), np.flatnonzero(np.diff(hits.query, prepend=-1))
    return float(np.sum(np.maximum.reduceat(score, starts) - np.minimum.reduceat(score, starts)))


def _pooled(runs: Sequence[Hits], values: list[Parts], lowest: list[Parts]) -> Pooled:
    """The passages of all runs, each once for a query; `lowest` is what a run says of the passages that it lacks, at each of its hits."""
    width = 1 + max((int(hits.passage.max()) for hits in runs if len(hits.passage)), default=0)
    pairs, place = np.unique(np.concatenate([hits.query * width + hits.passage for hits in runs]), return_inverse=True)
    query, passage = pairs // width, pairs % width
    parts, start = np.zeros((len(runs), len(pairs))), 0
    for part, hits, value, low in zip(parts, runs, values, lowest, strict=True):
        if len(hits.query):
            of_query = np.zeros(int(query.max()) + 1)
            of_query[hits.query] = low
            part[:] = of_query[query]
        part[place[start : start + len(hits.query)]] = value
        start += len(hits.query)
    return Pooled(query, passage, parts)
