"""The queries that are measured, and a run under its name, with what was measured of it and where the hits of each query are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, RunReader, not_adjacent, query_blocks
from raydense.data.store import Rows
from raydense.data.tables import query_starts
from raydense.evaluation.metrics import Judgements, Measured, trec_order
from raydense.runtime.progress import Progress
from raydense.storage import Artifact


@dataclass(frozen=True)
class MeasuredQueries:
    """The queries that are measured: the judged ones, or, without judgements, those that have answers."""

    query_ids: pa.Array
    judgements: Judgements | None

    def grades(self, query: int) -> dict[str, float]:
        """The grades of the judged passages of query number `query`."""
        return self.judgements.grades(query) if self.judgements else {}

    @cached_property
    def lookup(self) -> IdLookup:
        """The numbers of the queries by their ids."""
        return IdLookup(self.query_ids)


class Places:
    """Where the hits of each of some queries are in a run: the first row and how many, int64 [queries]; and these hits, read when they are wanted."""

    def __init__(self, lookup: IdLookup, artifact: Artifact) -> None:
        self._lookup, self.artifact = lookup, artifact
        self.first, self.count = (np.zeros(len(lookup), dtype=np.int64) for _ in range(2))
        self._offset = 0

    def blocks(self, progress: Progress) -> Iterator[pa.Table]:
        """The hits of the queries, in blocks of complete queries; their places are noted."""
        for block in query_blocks(self.artifact.parts(".parquet"), BLOCK_ROWS):
            known, sizes = self._note(block["query_id"])
            progress.add(block.num_rows)
            yield block if known.all() else block.filter(pa.array(np.repeat(known, sizes)))

    def find(self) -> None:
        """Note the places of the queries; reads their ids alone."""
        for block in query_blocks(self.artifact.parts(".parquet"), BLOCK_ROWS, ["query_id"]):
            self._note(block["query_id"])

    def _note(self, query_ids: pa.ChunkedArray) -> tuple[NDArray[np.bool_], Rows]:
        """Note the places of a block's queries; returns whether each is one of those asked, and how many rows it has."""
        starts = query_starts(query_ids)
        sizes, numbers = np.diff(starts), self._lookup.positions(query_ids.take(pa.array(starts[:-1])))
        known = numbers >= 0
        self._refuse_torn(numbers[known])
        self.first[numbers[known]] = self._offset + starts[:-1][known]
        self.count[numbers[known]] = sizes[known]
        self._offset += len(query_ids)
        return known, sizes

    def _refuse_torn(self, numbers: Rows) -> None:
        _, place = np.unique(numbers, return_index=True)
        again = np.append(np.setdiff1d(np.arange(len(numbers)), place), np.flatnonzero(self.count[numbers] > 0))
        if again.size:
            raise not_adjacent(self._lookup.ids[int(numbers[again.min()])].as_py(), self.artifact.located)

    @cached_property
    def _reader(self) -> RunReader:
        return RunReader(self.artifact.located, self.artifact.fingerprint)

    def rows_of(self, queries: Rows) -> pa.Table:
        """The hits of some queries, in the order of the run."""
        there = queries[self.count[queries] > 0]
        there = there[np.argsort(self.first[there])]
        first, end = self.first[there], self.first[there] + self.count[there]
        cuts = np.flatnonzero(np.append(True, first[1:] != end[:-1])) if len(there) else there
        pieces = [self._reader.read(int(first[a]), int(end[b - 1])) for a, b in pairwise([*cuts.tolist(), len(there)])]
        return pa.concat_tables([self._reader.empty, *pieces])


@dataclass(frozen=True)
class MeasuredRun:
    """One run under its name: what was measured, and where the hits of each query are, which are read when they are wanted.

    `most` is how many passages of a query the run holds, where that is fewer than one of its metrics looks at.
    """

    name: str
    artifact: Artifact
    measured: Measured
    answers: dict[str, Any] | None
    places: Places
    most: int | None = None

    def hits(self, query: int) -> pa.Table:
        """The hits of query number `query`, in trec_eval's order."""
        found = self.places.rows_of(np.array([query]))
        return trec_order(found, np.zeros(len(found), dtype=np.int64))[0]

    def in_blocks(self) -> Iterator[Rows]:
        """The numbers of the queries that the run has, in its order, in blocks of about `BLOCK_ROWS` hits."""
        there = np.flatnonzero(self.places.count)
        there = there[np.argsort(self.places.first[there])]
        block = np.cumsum(self.places.count[there]) // BLOCK_ROWS
        yield from np.split(there, np.flatnonzero(np.diff(block)) + 1)
