"""Lists of different lengths in two arrays, and random draws from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.ranges import ranges

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers of different lengths: list i is values[offsets[i]:offsets[i + 1]]. int64 [v], int64 [n + 1].

    `scores` float32 [v], if any: a teacher's score of each value, NaN for none.
    """

    values: Ints
    offsets: Ints
    scores: Floats | None = None

    @classmethod
    def of_column(cls, column: pa.ChunkedArray) -> Ragged:
        """The lists of an Arrow column, without a copy if it is one chunk."""
        lists = _one_chunk(column)
        return cls(lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy())

    def with_scores(self, column: pa.ChunkedArray) -> Ragged:
        """These lists with scores from a column of lists of the same lengths, or null; ValueError, with the list's number, if a length differs."""
        lists = _one_chunk(column)
        missing = lists.is_null().to_numpy(zero_copy_only=False)
        offsets = lists.offsets.to_numpy()
        wrong = (np.diff(offsets) != self.lengths) & ~missing
        if wrong.any():
            raise ValueError(int(np.argmax(wrong)))
        given = np.flatnonzero(~missing)
        scores = np.full(len(self.values), np.nan, np.float32)
        found = lists.values.to_numpy(zero_copy_only=False).astype(np.float32)
        scores[self._places(given)[0]] = found[Ragged(found, offsets)._places(given)[0]]
        return replace(self, scores=scores)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """How many values each list has: int64 [n]."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Ints:
        """The list of each value: int64 [v], for lists whose values are packed."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def _places(self, lists: Ints) -> tuple[Ints, Ints]:
        """The positions of the values of some lists, and the offsets of these lists when packed."""
        lengths = self.offsets[lists + 1] - self.offsets[lists]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return ranges(self.offsets[lists], lengths), offsets

    def take(self, lists: Ints) -> Ragged:
        """The lists at these positions, packed."""
        at, offsets = self._places(lists)
        return Ragged(self.values[at], offsets, None if self.scores is None else self.scores[at])

    def and_then(self, other: Ragged) -> Ragged:
        """These lists followed by `other`, packed; with scores if both have some."""
        a, b = (lists.take(np.arange(len(lists))) for lists in (self, other))
        scores = None if a.scores is None or b.scores is None else np.concatenate([a.scores, b.scores])
        return Ragged(np.concatenate([a.values, b.values]), np.concatenate([a.offsets, a.offsets[-1] + b.offsets[1:]]), scores)

    def scored(self) -> Ragged:
        """The values that have a score, packed."""
        packed = self.take(np.arange(len(self)))
        assert packed.scores is not None
        kept = ~np.isnan(packed.scores)
        counts = np.bincount(packed.owner[kept], minlength=len(self))
        return Ragged(packed.values[kept], np.append(0, np.cumsum(counts)), packed.scores[kept])

    def draw(self, count: int, rng: np.random.Generator, log_weights: NDArray[np.floating] | None = None) -> tuple[Ints, Floats]:
        """`count` distinct values of each packed list, drawn at random: int64 [n, count], -1 if a list has fewer.

        And the score of each: float32 [n, count], NaN for none. With `log_weights` [v], each draw takes a value of those that are
        left of the list with a probability proportional to its weight (Efraimidis and Spirakis 2006).
        """
        keys = rng.random(len(self.values))
        if log_weights is not None:
            with np.errstate(divide="ignore"):  # of 0
                keys = np.log(-np.log1p(-keys)) - log_weights
        return self._first(count, np.lexsort((keys, self.owner)))

    def first(self, count: int) -> tuple[Ints, Floats]:
        """The first `count` values of each packed list, in the shape of `draw`."""
        return self._first(count, np.arange(len(self.values)))

    def _first(self, count: int, order: Ints) -> tuple[Ints, Floats]:
        """The first values of each list, in the order `order`."""
        place = np.arange(count)
        chosen = order[np.minimum(self.offsets[:-1, None] + place, len(order) - 1)]
        there = place < self.lengths[:, None]
        scores = np.where(there, self.scores[chosen], np.nan) if self.scores is not None else np.full(chosen.shape, np.nan)
        return np.where(there, self.values[chosen], -1), scores.astype(np.float32)


def _one_chunk(column: pa.ChunkedArray) -> pa.LargeListArray:
    """The lists as one array: of Arrow's large lists, which may have more than 2^31 values."""
    return column.cast(pa.large_list(column.type.value_type)).combine_chunks()
