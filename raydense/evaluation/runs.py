"""The queries that are measured, and a run under its name, with what was measured of it and where the hits of each query are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, RunReader, not_adjacent, query_blocks
from raydense.data.store import Rows
from raydense.data.tables import query_starts
from raydense.evaluation.metrics import Judgements, Measured, trec_order
from raydense.runtime.progress import Progress
from raydense.storage import Artifact


@dataclass(frozen=True)
class Asked:
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
    """Where the hits of each query that is measured are in a run: its first row and how many rows it has, int64 [queries]."""

    def __init__(self, asked: Asked, run: str) -> None:
        self._lookup, self._run = asked.lookup, run
        self.first, self.count = (np.zeros(len(asked.query_ids), dtype=np.int64) for _ in range(2))

    def blocks(self, artifact: Artifact, progress: Progress) -> Iterator[pa.Table]:
        """The hits of the queries that are measured, in blocks of complete queries; their places are noted."""
        offset = 0
        for block in query_blocks(artifact.parts(".parquet"), BLOCK_ROWS):
            starts = query_starts(block["query_id"])
            numbers = self._lookup.positions(block["query_id"].take(pa.array(starts[:-1])))
            known = numbers >= 0
            self._refuse_torn(numbers[known])
            self.first[numbers[known]] = offset + starts[:-1][known]
            self.count[numbers[known]] = np.diff(starts)[known]
            offset += block.num_rows
            progress.add(block.num_rows)
            yield block if known.all() else block.filter(pa.array(np.repeat(known, np.diff(starts))))

    def _refuse_torn(self, numbers: Rows) -> None:
        _, place = np.unique(numbers, return_index=True)
        again = np.append(np.setdiff1d(np.arange(len(numbers)), place), np.flatnonzero(self.count[numbers] > 0))
        if again.size:
            raise not_adjacent(self._lookup.ids[int(numbers[again.min()])].as_py(), self._run)


@dataclass(frozen=True)
class MeasuredRun:
    """One run under its name: what was measured, and where the hits of each query are, which are read when they are wanted."""

    name: str
    artifact: Artifact
    measured: Measured
    answers: dict[str, Any] | None
    places: Places

    @cached_property
    def _reader(self) -> RunReader:
        return RunReader(self.artifact.located, self.artifact.fingerprint)

    def hits(self, query: int) -> pa.Table:
        """The hits of query number `query`, in trec_eval's order."""
        found = self.rows_of(np.array([query]))
        return trec_order(found, np.zeros(len(found), dtype=np.int64))[0]

    def in_blocks(self) -> Iterator[Rows]:
        """The numbers of the queries that the run has, in its order, in blocks of about `BLOCK_ROWS` hits."""
        there = np.flatnonzero(self.places.count)
        there = there[np.argsort(self.places.first[there])]
        block = np.cumsum(self.places.count[there]) // BLOCK_ROWS
        yield from np.split(there, np.flatnonzero(np.diff(block)) + 1)

    def rows_of(self, queries: Rows) -> pa.Table:
        """The hits of some queries, in the order of the run."""
        there = queries[self.places.count[queries] > 0]
        there = there[np.argsort(self.places.first[there])]
        first, end = self.places.first[there], self.places.first[there] + self.places.count[there]
        cuts = np.flatnonzero(np.append(True, first[1:] != end[:-1])) if len(there) else there
        pieces = [self._reader.read(int(first[a]), int(end[b - 1])) for a, b in pairwise([*cuts.tolist(), len(there)])]
        return pa.concat_tables([self._reader.empty, *pieces])
