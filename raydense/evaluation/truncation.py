"""Metrics that look deeper than a run: a re-ranked one of an earlier version, whose other candidates were cut off, or one that was searched with a smaller k."""

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


def most_held(hits: Rows) -> int | None:
    """How many passages of a query a run holds at most, where that is a limit: half of its queries have as many; None otherwise.

    `hits` has the number of hits of each query, int64 [queries].
    """
    there = hits[hits > 0]
    most = int(there.max(initial=0))
    return most if len(there) and 2 * (there == most).sum() >= len(there) else None


def cut_deeper_than(depth: int, metrics: Iterable[str]) -> list[str]:
    """Those of `metrics` whose own cutoff is greater than `depth`: they count no more than `depth` passages."""
    return [metric for metric in deeper_than(depth, metrics) if math.isfinite(_cutoff(metric))]


def deeper_than(depth: int, metrics: Iterable[str]) -> list[str]:
    """Those of `metrics` that look at more than `depth` passages of a query: R@100, top-100, and AP, which has no cutoff. Counts do not."""
    return [metric for metric in metrics if not metric.startswith("Num") and _cutoff(metric) > depth]


def _cutoff(metric: str) -> float:
    found = _CUTOFF.search(metric)
    return int(found[1]) if found else math.inf
