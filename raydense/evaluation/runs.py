"""The queries that are measured, and a run under its name, with what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raydense.evaluation.metrics import Judgements, Measured
from raydense.storage import Artifact


@dataclass(frozen=True)
class Asked:
    """The queries that are measured: the judged ones, or, without judgements, those that have answers."""

    query_ids: pa.Array
    judgements: Judgements | None

    @property
    def judged(self) -> dict[str, dict[str, float]]:
        """The grades of each query's judged passages."""
        return self.judgements.judged if self.judgements else {query: {} for query in self.query_ids.to_pylist()}


@dataclass(frozen=True)
class MeasuredRun:
    """One run under its name: the hits of the queries asked (in trec_eval's order) and what was measured."""

    name: str
    artifact: Artifact
    hits: pa.Table
    measured: Measured
    answers: dict[str, Any] | None
