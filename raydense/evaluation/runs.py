"""A run under its name, with what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raydense.data.artifact import Artifact
from raydense.evaluation.metrics import Measured


@dataclass(frozen=True)
class MeasuredRun:
    """One run under its name: the hits of the judged queries (in trec_eval's order) and what was measured."""

    name: str
    artifact: Artifact
    hits: pa.Table
    measured: Measured
    answers: dict[str, Any] | None
