"""The order of a re-ranked list: what the re-ranker scored by its scores, and below it the rest in the order that it had."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


def reordered(query: Rows, row: Rows, score: Scores) -> tuple[Rows, Scores]:
    """Hits by query rising: first those with a score, by score falling, then row rising; below them those without one (NaN), as they stand.

    The i-th of the n hits of a query without a score gets the least score of the query - i / n: the list stays sorted, and the scores of the
    rest lie within 1 below the others, as far as float32 distinguishes them. Without any score the least is 0. `query`, `row` int64 and
    `score` float32, all [hits]. Returns the hits' positions in the new order, int64, and their scores in that order, float32.
    """
    rest = np.isnan(score)
    order = np.lexsort((np.where(rest, np.arange(len(query)), row), np.where(rest, 0, -score), rest, query))
    query, score, rest = query[order], score[order], rest[order]
    if not rest.any():
        return order, score
    starts = np.flatnonzero(np.diff(query, prepend=-1))
    size = np.diff(starts, append=len(query))
    scored = np.add.reduceat(~rest, starts)
    least = np.where(scored > 0, score[starts + np.maximum(scored, 1) - 1], 0).astype(np.float64)
    place = np.arange(len(query)) - np.repeat(starts + scored, size) + 1
    below = np.repeat(least, size) - place / np.repeat(np.maximum(size - scored, 1), size)
    return order, np.where(rest, below, score).astype(np.float32)


def reordered_lists(rows: Rows, logits: Scores) -> tuple[Rows, Scores]:
    """As `reordered`, of lists: for each place of int64 [n, k] the place that its hit had, and its score, float32 [n, k].

    `rows` int64 [n, k] are hits in their order, -1 where a list has ended; `logits` float32 [n, m] are those of the first m places.
    """
    took = np.tile(np.arange(rows.shape[1]), (len(rows), 1))
    scores = np.full(rows.shape, -np.inf, np.float32)
    query, place = np.nonzero(rows >= 0)
    score = np.full(len(place), np.nan, np.float32)
    first = place < logits.shape[1]
    score[first] = logits[query[first], place[first]]
    order, found = reordered(query, rows[query, place], score)
    took[query, place], scores[query, place] = place[order], found
    return took, scores
