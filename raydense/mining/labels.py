"""The examples that `label` made, looked up by query: what a teacher calls positive and negative."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydense.data.lookup import IdLookup
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import one_column
from raydense.errors import InputError
from raydense.mining.negatives import Candidates
from raydense.ranges import ranges
from raydense.storage import Artifact

_COLUMNS = ["positives", "negatives", "positive_scores", "negative_scores"]
_PARTS_HELD = 4


class Labels:
    """Holds the query ids and a few files; if the labels are in the order of the run that is mined, each file is read once."""

    def __init__(self, path: str, store: PassageStore) -> None:
        """InputError if the examples are of another corpus, are not scored by a teacher, or repeat a query."""
        artifact = Artifact.open(path, "examples")
        store.refuse_rows_of_another(artifact)
        self._path, self._rows = path, len(store)
        self._parts = artifact.parts(".parquet")
        if any(name not in pq.read_schema(part).names for part in self._parts for name in _COLUMNS):
            raise InputError("holds examples without the scores of a teacher", path, "give what `raydense label` made")
        columns = [pq.read_table(part, columns=["query_id"])["query_id"] for part in self._parts]
        self._starts = np.cumsum([0, *map(len, columns)])
        ids = one_column(columns)
        if len(pc.unique(ids)) != len(ids):
            raise InputError("names a query twice", path, "give what `raydense label` made")
        self._lookup = IdLookup(ids)
        self._part = lru_cache(_PARTS_HELD)(self._read)

    def _read(self, part: Path) -> pa.Table:
        return pq.read_table(part, columns=_COLUMNS)

    def of(self, query_ids: pa.Array) -> tuple[Candidates, Candidates, int]:
        """The positives and the negatives of these queries, list after list, with the teacher's scores; and how many queries have labels.

        The rank of each is its position in its list, from 0.
        """
        at = self._lookup.positions(query_ids)
        found = np.flatnonzero(at >= 0)
        place = np.searchsorted(self._starts, at[found], side="right") - 1
        lists: list[tuple[Candidates, Candidates]] = [self._lists(pa.table({n: [] for n in _COLUMNS}), found[:0])]
        for part in np.unique(place):
            mine = found[place == part]
            rows = pa.array(at[mine] - self._starts[part])
            lists.append(self._lists(self._part(self._parts[part]).take(rows), mine))
        positives, negatives = (_joined(side) for side in zip(*lists, strict=True))
        return positives, negatives, len(found)

    def _lists(self, table: pa.Table, queries: Rows) -> tuple[Candidates, Candidates]:
        return self._side(table, queries, "positive"), self._side(table, queries, "negative")

    def _side(self, table: pa.Table, queries: Rows, name: str) -> Candidates:
        if not len(queries):
            return Candidates(queries, queries, queries.astype(np.int32), queries.astype(np.float32))
        lengths = pc.list_value_length(table[f"{name}s"]).to_numpy().astype(np.int64)
        row: Rows = pc.list_flatten(table[f"{name}s"]).to_numpy()
        score: NDArray[np.float32] = pc.list_flatten(table[f"{name}_scores"]).to_numpy()
        if len(score) != len(row) or row.min(initial=0) < 0 or row.max(initial=0) >= self._rows:
            raise InputError(f"names {name}s that the corpus or their scores do not have", self._path, "give what `raydense label` made")
        rank = ranges(np.zeros_like(lengths), lengths)
        return Candidates(np.repeat(queries, lengths), row, rank.astype(np.int32), score)


def _joined(parts: tuple[Candidates, ...]) -> Candidates:
    whole = Candidates(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("query", "row", "rank", "score")))
    return whole.at(np.argsort(whole.query, kind="stable"))
