"""Pooling (Qiu et al. 2022, section 2.3): the union of the first passages of several runs for the judged queries, a block of queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS
from raydense.data.store import PassageStore, Rows
from raydense.errors import InputError
from raydense.evaluation.runs import Places
from raydense.retrieval.fusion import RANK_CONSTANT
from raydense.storage import Artifact


@dataclass(frozen=True)
class Pooled:
    """Passages of some queries, each once, by query and then row: int64 number of the query and row of the passage, both [n], and int32
    ranks [runs, n], 0 where a run does not have the passage among its first.
    """

    query: Rows
    row: Rows
    rank: NDArray[np.int32]

    @property
    def reciprocal(self) -> NDArray[np.float64]:
        """The sum over the runs of 1 / (60 + rank), float64 [n]."""
        total = np.zeros(len(self.row))
        for rank in self.rank:  # not a sum along an axis, whose order of additions NumPy chooses
            total += np.where(rank > 0, 1.0 / (RANK_CONSTANT + rank), 0.0)
        return total


class PooledRuns:
    """The runs to pool, and where the hits of each judged query are in them. InputError where no run has a judged query."""

    def __init__(self, runs: dict[str, str], query_ids: pa.Array, store: PassageStore, depth: int, qrels: str) -> None:
        self.names, self._store, self._depth, self._lookup = list(runs), store, depth, IdLookup(query_ids)
        self._places = [Places(self._lookup, Artifact.open(folder, "run")) for folder in runs.values()]
        for place in self._places:
            store.refuse_rows_of_another(place.artifact)
            place.find()
        self.hits: Rows = np.sum([np.minimum(place.count, depth) for place in self._places], axis=0)
        if not self.hits.any():
            raise InputError("no run has a query that is judged here", qrels, "give judgements of queries that the runs have")

    def blocks(self) -> Iterator[Rows]:
        """The numbers of the queries that a run has, rising, in blocks of about `BLOCK_ROWS` hits."""
        there = np.flatnonzero(self.hits)
        block = np.cumsum(self.hits[there]) // BLOCK_ROWS
        yield from np.split(there, np.flatnonzero(np.diff(block)) + 1)

    def pooled(self, numbers: Rows) -> Pooled:
        """The pool of the queries of these numbers; InputError where a run names an unknown passage, or one twice for a query."""
        found = [self._first(place, numbers) for place in self._places]
        pairs, at = np.unique(np.concatenate([pair for pair, _ in found]), return_inverse=True)
        rank, start = np.zeros((len(found), len(pairs)), dtype=np.int32), 0
        for of_run, (pair, ranks) in zip(rank, found, strict=True):
            of_run[at[start : start + len(pair)]] = ranks
            start += len(pair)
        query, row = np.divmod(pairs, len(self._store))
        return Pooled(query, row, rank)

    def _first(self, place: Places, numbers: Rows) -> tuple[Rows, NDArray[np.int32]]:
        """The first hits of one run: query and passage as one number, and the rank."""
        hits = place.rows_of(numbers)
        rank = hits["rank"].to_numpy()
        hits, rank = hits.filter(pa.array(rank <= self._depth)), rank[rank <= self._depth]
        row = self._store.known_rows(hits["passage_id"], place.artifact.located)
        pair = self._lookup.positions_of_rows(hits["query_id"]) * len(self._store) + row
        again = np.flatnonzero(np.diff(np.sort(pair)) == 0)
        if again.size:
            query, twice = divmod(int(np.sort(pair)[again[0]]), len(self._store))
            names = self._store.ids(np.array([twice]))[0].as_py(), self._lookup.ids[query].as_py()
            raise InputError("names passage {!r} twice for query {!r}".format(*names), place.artifact.located, "keep one")
        return pair, rank.astype(np.int32)
