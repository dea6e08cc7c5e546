"""The lists of training examples: some passages of each query, with a score and a source of each, made into a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.store import Rows
from raydense.mining.negatives import Candidates, Flags, scores_of


@dataclass(frozen=True)
class Listed:
    """Passages of some queries, list after list: the query's number, the row, a score (NaN: none) and a source."""

    query: Rows
    row: Rows
    score: NDArray[np.float32]
    source: pa.Array

    @classmethod
    def of(cls, query: Rows, row: Rows, score: NDArray[np.float32], source: str) -> Listed:
        """Passages of one source, ordered by query."""
        codes = pa.DictionaryArray.from_arrays(np.zeros(len(row), dtype=np.int32), pa.array([source]))
        return cls(query, row, score, codes.cast(pa.string()))

    def scored(self, found: Candidates) -> Listed:
        """These, each with the score that it has among `found`; NaN where it is not there."""
        return replace(self, score=scores_of(self.query, self.row, found))

    def then(self, others: Listed) -> Listed:
        """These and, at the end of the list of each query, those."""
        query = np.concatenate([self.query, others.query])
        order = np.argsort(query, kind="stable")
        row, score = np.concatenate([self.row, others.row])[order], np.concatenate([self.score, others.score])[order]
        return Listed(query[order], row, score, pa.concat_arrays([self.source, others.source]).take(pa.array(order)))

    def counts(self, queries: int) -> Rows:
        """How many passages the list of each of `queries` queries has."""
        return np.bincount(self.query, minlength=queries)

    def sources(self, kept: Flags) -> dict[str, int]:
        """How many passages of each source the lists of the kept queries have."""
        found = pc.value_counts(self.source.filter(pa.array(kept[self.query]))).to_pylist()
        return {pair["values"]: pair["counts"] for pair in found}

    def columns(self, kept: Flags) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Rows, scores (null if there is none) and sources of the lists of the kept queries."""
        offsets = pa.array(np.append(0, np.cumsum(self.counts(len(kept))[kept])), pa.int32())
        chosen = kept[self.query]
        score = pa.array(self.score[chosen], pa.float32(), from_pandas=True)  # from_pandas: NaN becomes null
        parts = (pa.array(self.row[chosen]), score, self.source.filter(pa.array(chosen)))
        rows, scores, sources = (pa.ListArray.from_arrays(offsets, part) for part in parts)
        return rows, scores, sources


def examples_table(query_ids: pa.Array, positives: Listed, negatives: Listed, kept: Flags) -> pa.Table:
    """Examples of the kept ones of these queries, in their order."""
    columns: dict[str, pa.Array] = {"query_id": query_ids.filter(pa.array(kept))}
    for name, lists in (("positive", positives), ("negative", negatives)):
        columns[f"{name}s"], columns[f"{name}_scores"], columns[f"{name}_sources"] = lists.columns(kept)
    return pa.table(columns)
