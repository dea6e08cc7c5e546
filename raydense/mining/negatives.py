"""Chooses the hard negatives of a run by arithmetic on arrays, one element per candidate, without a loop over passages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.draws import draw
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import positives_of
from raydense.ranges import ranges

Flags = NDArray[np.bool_]
_RANDOM = 3  # a stream of `draw`: 1 and 2 are those of `label` and of hybrid lists
_SPARE = 32


@dataclass(frozen=True)
class Candidates:
    """Passages of some queries, in the order of the run: the query's number, the passage's row, its rank and its score."""

    query: Rows
    row: Rows
    rank: NDArray[np.int32]
    score: NDArray[np.float32]

    def at(self, chosen: Flags | Rows) -> Candidates:
        """The candidates that a mask or a list of positions selects."""
        return Candidates(self.query[chosen], self.row[chosen], self.rank[chosen], self.score[chosen])

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Positives:
    """The positives of each query of some qrels: those of query number i are rows[offsets[i]:offsets[i + 1]], best first.

    `lacking` is how many of the judgements were left out: the corpus does not have their passages.
    """

    query_ids: pa.Array
    offsets: Rows
    rows: Rows
    text_hash: NDArray[np.uint64]
    lacking: int = 0

    @classmethod
    def of(cls, qrels: pa.Table, store: PassageStore, where: object) -> Positives:
        """All positives (relevance >= 1) by query, of the passages that the corpus has; InputError where it has none of those judged."""
        query_ids = pc.unique(qrels["query_id"])
        known = store.known_judgements(qrels, where)
        table = positives_of(known)
        query = pc.index_in(table["query_id"], value_set=query_ids).to_numpy().astype(np.int64)
        row = store.known_rows(table["passage_id"], where)
        worth = -table["relevance"].to_numpy().astype(np.int64)
        by_row = np.lexsort((worth, row, query))
        first = by_row[~_as_before(query[by_row], row[by_row])]
        best = first[np.lexsort((row[first], worth[first], query[first]))]
        offsets = np.searchsorted(query[best], np.arange(len(query_ids) + 1))
        text_hash = np.asarray(store.text_hash[row[best]])
        return cls(query_ids, offsets.astype(np.int64), row[best], text_hash, len(qrels) - len(known))

    def __len__(self) -> int:
        return len(self.query_ids)

    @cached_property
    def counts(self) -> Rows:
        """How many positives each query has, int64 [queries]."""
        return np.diff(self.offsets)

    def counts_of(self, queries: Rows) -> Rows:
        """How many positives each of some queries has, int64 [n]; 0 if its number is -1."""
        return np.append(self.counts, 0)[queries]

    def lists(self, queries: Rows) -> tuple[Rows, Rows]:
        """The positives of some queries one after another, int64, and the position in `queries` of the query of each, int64."""
        counts = self.counts_of(queries)
        return self.rows[ranges(self.offsets[queries], counts)], np.repeat(np.arange(len(queries)), counts)

    @cached_property
    def _hashes(self) -> NDArray[np.uint64]:
        return np.unique(self.text_hash)

    @cached_property
    def _pairs(self) -> Rows:
        query = np.repeat(np.arange(len(self)), self.counts)
        return np.unique(query * len(self._hashes) + np.searchsorted(self._hashes, self.text_hash))

    @cached_property
    def _row_pairs(self) -> Rows:
        return np.sort(np.repeat(np.arange(len(self)), self.counts) * self._width + self.rows)

    @property
    def _width(self) -> int:
        return int(self.rows.max(initial=0)) + 1

    def hold(self, query: Rows, row: Rows) -> Flags:
        """Whether each passage is a positive of its query."""
        return (row < self._width) & _member(query * self._width + row, self._row_pairs)

    def hold_text(self, query: Rows, text_hash: NDArray[np.uint64]) -> Flags:
        """Whether each passage has the text of a positive of its query, as every positive itself has."""
        if not len(self._hashes):
            return np.zeros(len(query), dtype=bool)
        at = np.minimum(np.searchsorted(self._hashes, text_hash), len(self._hashes) - 1)
        return (self._hashes[at] == text_hash) & _member(query * len(self._hashes) + at, self._pairs)


def repeats(query: Rows, text_hash: NDArray[np.uint64]) -> Flags:
    """Whether an earlier candidate of the same query has the same text; bool [n]."""
    order = np.lexsort((text_hash, query))
    again = np.zeros(len(query), dtype=bool)
    again[order] = _as_before(query[order], text_hash[order])
    return again


def among(query: Rows, key: NDArray[np.generic], of_query: Rows, of_key: NDArray[np.generic]) -> Flags:
    """Whether each pair of query and key (a text's hash) is one of the pairs of `of_query` and `of_key`; bool [n]."""
    keys, codes = np.unique(np.concatenate([key, of_key]), return_inverse=True)
    pairs = np.concatenate([query, of_query]) * len(keys) + codes
    return np.isin(pairs[: len(key)], pairs[len(key) :])


def scores_of(query: Rows, row: Rows, scored: Candidates) -> NDArray[np.float32]:
    """The score that each passage of a query has among `scored`, or NaN; float32 [n]."""
    if not len(scored):
        return np.full(len(row), np.nan, dtype=np.float32)
    width = 1 + max(int(row.max(initial=0)), int(scored.row.max()))
    pairs = scored.query * width + scored.row
    order = np.argsort(pairs, kind="stable")
    at = order[np.minimum(np.searchsorted(pairs[order], query * width + row), len(order) - 1)]
    return np.where(pairs[at] == query * width + row, scored.score[at], np.nan).astype(np.float32)


def too_near(margins: dict[str, float], score: NDArray[np.float32], positive: NDArray[np.float32]) -> dict[str, Flags]:
    """By margin of `Margins`, which candidates it leaves out and those before it do not; bool [n].

    `score` is that of each candidate, and `positive` that of the positive of its query, both float32 [n]; -inf if it is not known.
    """
    left, found = np.ones(len(score), dtype=bool), {}
    for name, value in margins.items():
        found[name] = left & (score > _most(name, value, positive.astype(np.float64)))
        left &= ~found[name]
    return found


def _most(name: str, value: float, positive: NDArray[np.float64]) -> float | NDArray[np.float64]:
    """The highest score that a margin allows."""
    if name == "max_score":
        return value
    away = value if name == "absolute_margin" else np.abs(np.where(np.isfinite(positive), positive, 0.0)) * value
    return positive - away


def random_rows(seed: int, query_hash: NDArray[np.uint64], rows: int, count: int) -> tuple[Rows, Rows]:
    """Random rows of a corpus of `rows` passages for each query: the number of the query, and the row, int64 [n], by query.

    More than the `count` that are wanted, as some may be positives; of a small corpus all, in a random order. They depend on seed, query
    and `rows` alone.
    """
    each = min(rows, 2 * count + _SPARE)
    query = np.repeat(np.arange(len(query_hash)), each)
    number = np.tile(np.arange(each), len(query_hash))
    drawn = draw(seed, query_hash[query], number, _RANDOM)
    if each < rows:
        return query, (drawn % np.uint64(rows)).astype(np.int64)
    return query, number[np.lexsort((drawn, query))]


def first_of_each(query: Rows, key: NDArray[np.generic], count: int) -> Rows:
    """The positions of the `count` candidates with the smallest key of each query, by query and then by key; int64."""
    order = np.lexsort((key, query))
    sorted_query = query[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_query, sorted_query)
    return order[place < count]


def _as_before(*columns: NDArray[np.generic]) -> Flags:
    same = np.zeros(len(columns[0]), dtype=bool)
    if len(same):
        same[1:] = np.logical_and.reduce([c[1:] == c[:-1] for c in columns])
    return same


def _member(values: Rows, sorted_set: Rows) -> Flags:
    if not len(sorted_set):
        return np.zeros(len(values), dtype=bool)
    at = np.minimum(np.searchsorted(sorted_set, values), len(sorted_set) - 1)
    return sorted_set[at] == values
