"""Gauges that a Prometheus reads from a node's metrics port: how far each stage is, and what a training learns.

They are Ray's metrics, named `ray_raydense_...` there. A process without Ray shows none; setting one costs microseconds.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.util.metrics import Gauge

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
}


def show(gauge: str, value: float, /, **tags: str) -> None:
    """Set `gauge` of `GAUGES`, with the tags that it has."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        _gauge(gauge).set(value, tags=tags)


@lru_cache
def _gauge(name: str) -> Gauge:
    from ray.util.metrics import Gauge

    words, tags = GAUGES[name]
    return Gauge(f"raydense_{name}", description=words, tag_keys=tags)
