"""Merges the hits of shards in one order: score falling, then row rising; pure NumPy, so the order never depends on the sharding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
Rows = NDArray[np.int64]
Hits = tuple[Scores, Rows]

_NO_ROW, _NEGATIVE_ZERO = 2**32 - 1, 2**31
_AT_ONCE = 2**19  # hits whose order is made at once: what is larger than the processor's cache takes several times as long
MARGIN = 16  # hits beyond k that an exact index is asked for, so that a few near ties need no second search


def no_hits(queries: int, k: int) -> Hits:
    """The result of a search that found nothing: scores -inf [queries, k], rows -1 [queries, k]."""
    return np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64)


def order_hits(scores: Scores, rows: Rows, k: int) -> Hits:
    """The first k of each query's hits, by score falling and then row rising.

    `scores` float32 [n, m] and `rows` int64 [n, m], in any order; a row of -1 is no hit, whatever its score. Returns
    [n, k] of both, padded with -inf and -1.
    """
    best, best_rows = no_hits(len(scores), k)
    width, step = min(k, scores.shape[1]), max(1, _AT_ONCE // max(1, scores.shape[1]))
    for at in range(0, len(scores), step):
        part = slice(at, at + step)
        ordered, ordered_rows = _ordered(np.where(rows[part] >= 0, scores[part], -np.inf).astype(np.float32, copy=False), rows[part])
        best[part, :width], best_rows[part, :width] = ordered[:, :width], ordered_rows[:, :width]
    return best, best_rows


def _ordered(scores: Scores, rows: Rows) -> Hits:
    fits = rows.max(initial=0) < _NO_ROW and not np.isnan(scores).any() and not (scores.view(np.uint32) == _NEGATIVE_ZERO).any()
    return _sorted(scores, rows) if fits else _lexsorted(scores, rows)


def _lexsorted(scores: Scores, rows: Rows) -> Hits:
    order = np.lexsort((np.where(rows >= 0, rows, np.iinfo(np.int64).max), -scores), axis=-1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _sorted(scores: Scores, rows: Rows) -> Hits:
    """As `_lexsorted`, many times as fast: sorts one integer a hit, with the score's bits above those of the row."""
    keys = _falling(scores.view(np.int32)).view(np.uint32).astype(np.uint64) << 32
    keys |= np.where(rows >= 0, rows, _NO_ROW).astype(np.uint64)
    keys.sort(axis=1)
    ordered = (keys & _NO_ROW).astype(np.int64)
    return _falling((keys >> 32).astype(np.uint32).view(np.int32)).view(np.float32), np.where(ordered == _NO_ROW, -1, ordered)


def _falling(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Floats' bits as bits that are, unsigned, the higher the lower the float is; and these as the floats' bits."""
    return np.where(bits < 0, bits, bits ^ np.int32(0x7FFFFFFF))


def merge_hits(parts: list[Hits], k: int) -> Hits:
    """The best k over the hits of all shards, each a pair (float32 [n, m], int64 [n, m]) of global rows."""
    return order_hits(np.concatenate([p[0] for p in parts], axis=1), np.concatenate([p[1] for p in parts], axis=1), k)


def top_k(scores: Scores, rows: Rows, k: int) -> Hits:
    """One query's best k by score falling, then row rising, with all ties at the k-th place considered; 1-D in, 1-D of at most k out."""
    if len(scores) > k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = scores >= threshold
        scores, rows = scores[kept], rows[kept]
    order = np.lexsort((rows, -scores))[:k]
    return scores[order], rows[order]


def rounding_bound(queries: Scores, largest_norm: float, half: bool = False) -> Scores:
    """A bound on the difference of two float32 inner products of the same pair, float32 [n], for any order of summation.

    Rounding errors of a sum of d products add up as a random walk, lambda sqrt(d) u |q| |p| with probability
    1 - 2 exp(-lambda^2 / 2) (Higham & Mary 2019, A new approach to probabilistic rounding error analysis); lambda = 8 here.
    With `half`, one of the two was made of queries rounded to float16 (vectors that are float16 already, sums in float32): by at most
    2^-11 |q| |p| more, or 2^-25 sqrt(d) |p| where numbers are too small for float16's eleven bits.
    """
    unit = 2.0**-24
    norms = np.sqrt(np.einsum("nd,nd->n", queries, queries, dtype=np.float64))
    rounded = 2.0**-11 * norms + 2.0**-25 * np.sqrt(queries.shape[1]) if half else 0.0
    return ((2 * 8 * np.sqrt(queries.shape[1]) * unit * norms + rounded) * largest_norm).astype(np.float32)


def first_share(k: int, shards: int) -> int:
    """The hits that each shard of an exact index is first asked for: twice its even share of `k`, plus the margin.

    Keeping k hits of every shard takes a tenth of FAISS's time for a search over 7 shards. At most half of the shards can hold that
    many of the best k, and only those are asked again (`contenders`, `widened`). So apart from near ties a search costs at most half more.
    """
    return min(k, -(-2 * k // shards)) + MARGIN


def widened(hits: Hits, queries: NDArray[np.int64], wider: Hits) -> Hits:
    """A shard's `hits` [n, m] with those of `queries` replaced by `wider` [len(queries), w], m <= w; -inf and -1 beyond m for the others."""
    scores, rows = no_hits(len(hits[0]), wider[0].shape[1])
    scores[:, : hits[0].shape[1]], rows[:, : hits[1].shape[1]] = hits
    scores[queries], rows[queries] = wider
    return scores, rows


def contenders(parts: list[Hits], complete: list[bool], k: int, bound: Scores) -> tuple[Rows, NDArray[np.bool_]]:
    """The rows that may be among the best k once their scores are exact, and the shards that may hold more such rows for a query.

    `parts` holds each shard's hits in FAISS's order, with scores that are off by at most `bound` [n]: FAISS's own, or rescored
    ones. `complete` is true for a shard that returned all its rows. Returns rows int64 [n, w], -1 for none, and bool
    [shards, n]: true if a shard's last hit is so close to the k-th score that rows it did not return may be among the best k.
    """
    rows = np.concatenate([p[1] for p in parts], axis=1)
    scores = np.where(rows >= 0, np.concatenate([p[0] for p in parts], axis=1), -np.inf).astype(np.float32, copy=False)
    found = scores.shape[1]
    kth = np.partition(scores, found - k, axis=1)[:, found - k] if found >= k else np.full(len(scores), -np.inf, np.float32)
    floor = kth - 2 * bound
    contending = (scores >= floor[:, None]) & (rows >= 0)
    width = int(contending.sum(axis=1).max(initial=0))
    if 0 < width < found:  # these rows have the highest scores: partitioning finds them without sorting the rest
        highest = np.argpartition(scores, found - width, axis=1)[:, found - width :]
        rows, contending = np.take_along_axis(rows, highest, axis=1), np.take_along_axis(contending, highest, axis=1)
    open_ = np.stack([(p[0][:, -1] >= floor) & (not whole) for p, whole in zip(parts, complete, strict=True)])
    return np.where(contending, rows, -1)[:, :width], open_
