"""Rates: the seconds of a stage's start and of each unit of its work, by its kind; those of this machine's cache, or the rough ones that come with raydense.

A calibration measures the rates of each stage of a recipe on the cluster at hand, and keeps them in the cache for later plans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydense.forecast import Forecast
from raydense.storage import write_whole
from raydense.storage.cache import cache

_OWN = Path(__file__).parent / "rates.json"
START = "start"
_KEPT = ("each", "cluster", "date", "cpus", "gpus")


@dataclass(frozen=True)
class Rate:
    """The seconds of the start and of each unit of work of one kind, as measured on a cluster on a date.

    `spread` is the covariance of the unknowns that a calibration fitted, each `unknowns` a sum of the seconds of some work; empty for rates
    that were read from a file.
    """

    each: dict[str, float]
    cluster: str
    date: str
    cpus: float
    gpus: float
    unknowns: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    spread: tuple[tuple[float, ...], ...] = field(default=(), compare=False)

    @property
    def source(self) -> str:
        """Where and when it was measured."""
        return f"{self.cluster}, {self.date}"

    def seconds(self, forecast: Forecast) -> tuple[float, float | None]:
        """The seconds of a stage, and twice their standard deviation where that is known."""
        parts = {name: amount * self.each.get(name, 0.0) for name, amount in amounts_of(forecast, self.cpus).items()}
        if not self.unknowns:
            return sum(parts.values()), None
        sums = [sum(parts[name] for name in names if name in parts) for names in self.unknowns]
        variance = sum(a * b * cell for a, row in zip(sums, self.spread, strict=True) for b, cell in zip(sums, row, strict=True))
        return sum(parts.values()), 2 * max(0.0, variance) ** 0.5


def amounts_of(forecast: Forecast, cpus: float) -> dict[str, float]:
    """The start and the work of a stage; the work counts as much more as CPUs have nothing to do, because it has fewer parts than these."""
    alone = max(1.0, cpus / forecast.tasks) if forecast.tasks else 1.0
    return {START: 1.0} | {name: amount * alone for name, amount in forecast.work.items()}


class Rates:
    """The rate of each stage: that of a calibration, else the one stored for its kind."""

    def __init__(self, stored: Mapping[str, Rate], calibrated: Mapping[str, Rate] | None = None) -> None:
        self.stored, self.calibrated = dict(stored), dict(calibrated or {})

    def of(self, stage: str, forecast: Forecast) -> Rate | None:
        """The rate of a stage, by its name or the kind of its forecast; None where neither was measured."""
        return (self.calibrated.get(stage) or self.stored.get(forecast.kind)) if forecast.kind else None


def stored_rates() -> dict[str, Rate]:
    """The rates by kind: those of this machine's cache before those that came with raydense."""
    rates = {kind: Rate(**values) for kind, values in _read(_OWN).items()}
    for kind, values in _read(_kept()).items():
        own = rates[kind].each if kind in rates else {}
        rates[kind] = Rate(**values | {"each": own | {name: value for name, value in values["each"].items() if value > 0}})
    return rates


def keep_rates(rates: Mapping[str, Rate]) -> None:
    """Keep rates by kind in the cache, for later plans."""
    kept = _read(_kept()) | {kind: {key: getattr(rate, key) for key in _KEPT} for kind, rate in rates.items()}
    _kept().parent.mkdir(parents=True, exist_ok=True)
    write_whole(_kept(), json.dumps(kept, indent=1).encode())


def _kept() -> Path:
    return cache() / "calibrated.json"


def _read(file: Path) -> dict[str, Any]:
    """What a file has; nothing where it is not there or was damaged."""
    try:
        found = json.loads(file.read_text("utf-8"))
        return {kind: values for kind, values in found.items() if set(values) == set(_KEPT)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
