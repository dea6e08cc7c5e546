"""What a Prometheus reads from a node's metrics port: how far each stage is, what a training learns, how quick a shard answers.

They are Ray's metrics, named `ray_raydense_...` there. A process without Ray shows none; setting one costs microseconds.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.util.metrics import Gauge, Histogram

GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "done": ("passages, queries, pairs, candidates or steps that a stage is done with: its rate is theirs", ("stage", "unit")),
    "total": ("how many there are in all; 0 where that is not known", ("stage", "unit")),
    "files_open": ("files of a stage on Ray Data that are not committed yet: its queue", ("stage",)),
    "train": (
        "the last line of a training's history: loss, lr, dev metrics, and with refresh generation and staleness",
        ("output", "name"),
    ),
    "refresh_seconds": ("what the last generation of hard negatives took to make", ("output",)),
    "negatives_kept": ("hard negatives that a mining put into its examples", ("output",)),
    "searches_waiting": ("calls that a shard actor has and has not answered yet", ("index", "shard")),
}
TIMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "shard_seconds": ("seconds that a shard actor took to answer a search, waiting included", ("index", "shard")),
}
_BOUNDS_S = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]


def show(gauge: str, value: float, /, **tags: str) -> None:
    """Set `gauge` of `GAUGES`, with the tags that it has."""
    if _has_ray():
        _gauge(gauge).set(value, tags=tags)


def time_taken(times: str, seconds: float, /, **tags: str) -> None:
    """Count a duration among `times` of `TIMES`, a histogram."""
    if _has_ray():
        _histogram(times).observe(seconds, tags=tags)


def _has_ray() -> bool:
    """Whether this process has a Ray: another thread may be importing it just now, and then it lacks even the question."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


@lru_cache
def _histogram(name: str) -> Histogram:
    from ray.util.metrics import Histogram

    words, tags = TIMES[name]
    return Histogram(f"raydense_{name}", description=words, boundaries=_BOUNDS_S, tag_keys=tags)


@lru_cache
def _gauge(name: str) -> Gauge:
    from ray.util.metrics import Gauge

    words, tags = GAUGES[name]
    return Gauge(f"raydense_{name}", description=words, tag_keys=tags)
