"""Metrics that look deeper than a run, as one that was searched with a smaller k."""

from __future__ import annotations

import re
from collections.abc import Iterable

from raydense.data.store import Rows

_CUTOFF = re.compile(r"(?:@|^top-)(\d+)$")


def most_held(hits: Rows) -> int | None:
    """How many passages of a query a run holds at most, where that is a limit: half of its queries have as many; None otherwise.

    `hits` has the number of hits of each query, int64 [queries].
    """
    there = hits[hits > 0]
    most = int(there.max(initial=0))
    return most if len(there) and 2 * (there == most).sum() >= len(there) else None


def cut_deeper_than(depth: int, metrics: Iterable[str]) -> list[str]:
    """Those of `metrics` whose own cutoff is greater than `depth`: they count no more than `depth` passages."""
    return [metric for metric in metrics if (found := _CUTOFF.search(metric)) and int(found[1]) > depth]
