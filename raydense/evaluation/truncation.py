"""Metrics that look deeper than a re-ranked run of an earlier version, which has the first candidates of each query alone: the rest was cut off."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from raydense.data.runs import scored_depth
from raydense.data.store import Rows
from raydense.storage import Artifact

_CUTOFF = re.compile(r"(?:@|^top-)(\d+)$")


def cut_to(run: Artifact, hits: Rows) -> int | None:
    """To how many candidates of each query a re-ranked run was cut; None for another run, and where none was cut off.

    `hits` has the number of hits of each query, int64 [queries]: one that has as many as were re-ranked may have had more.
    """
    depth = None if "kept" in run.summary else scored_depth(run)
    return depth if depth is not None and (hits >= depth).any() else None


def deeper_than(depth: int, metrics: Iterable[str]) -> list[str]:
    """Those of `metrics` that look at more than `depth` passages of a query: R@100, top-100, and AP, which has no cutoff. Counts do not."""
    return [metric for metric in metrics if not metric.startswith("Num") and _cutoff(metric) > depth]


def _cutoff(metric: str) -> float:
    found = _CUTOFF.search(metric)
    return int(found[1]) if found else math.inf
