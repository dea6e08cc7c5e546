"""Metrics for Prometheus, on each node's metrics port: progress of stages, the history of a training, latency of shards.

They are metrics of Ray, exported as `ray_raydense_...`. A process without Ray exports none; setting one costs microseconds.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.util.metrics import Gauge, Histogram

GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "done": ("passages, queries, pairs, candidates or steps that a stage has finished: its rate is theirs", ("stage", "unit")),
    "total": ("how many there are in total; 0 if unknown", ("stage", "unit")),
    "files_open": ("files of a stage on Ray Data that are not committed yet: its queue", ("stage",)),
    "train": (
        "the newest numbers of a training: loss, lr, dev metrics, tokens a second, memory in GiB, and with refresh generation and staleness",
        ("output", "name"),
    ),
    "refresh_seconds": ("seconds to make the last generation of hard negatives", ("output",)),
    "negatives_kept": ("hard negatives in the examples of a mining", ("output",)),
    "searches_waiting": ("calls in progress in a shard actor", ("index", "shard")),
}
TIMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "shard_seconds": ("seconds of a search in a shard actor, waiting included", ("index", "shard")),
}
_BOUNDS_S = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]


def show(gauge: str, value: float, /, **tags: str) -> None:
    """Set the gauge `gauge` of `GAUGES`, with its tags."""
    if _has_ray():
        _gauge(gauge).set(value, tags=tags)


def time_taken(times: str, seconds: float, /, **tags: str) -> None:
    """Add a duration to `times` of `TIMES`, a histogram."""
    if _has_ray():
        _histogram(times).observe(seconds, tags=tags)


def _has_ray() -> bool:
    """Whether this process uses Ray. While another thread imports ray, the module lacks even `is_initialized`."""
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
