"""What the stages of a recipe will need, as far as that is known before they run: sizes, work, time and money.

Sizes flow through the stages in order: what a folder holds stands in its manifest, and for one that is not there yet it
follows from the settings of the stage that will make it (`Settings.forecast`). Nothing is computed, no passage is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import log
from typing import Any

from raydense.forecast import Forecast, Holds, Known, Model
from raydense.recipes.rates import Rate, Rates
from raydense.settings import Settings


@dataclass(frozen=True)
class Prices:
    """The price of an hour of one GPU, and of one CPU; of a cluster, all are paid for while it runs."""

    gpu_hour: float = 0.0
    cpu_hour: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.gpu_hour or self.cpu_hour)

    def known(self, rate: Rate) -> bool:
        """Whether the cluster of a rate has anything with a price: by that of GPUs alone one without them is not free."""
        return bool(rate.gpus * self.gpu_hour or rate.cpus * self.cpu_hour)

    def of(self, seconds: float, rate: Rate) -> float:
        """What the cluster of a rate costs in that time."""
        return seconds / 3600 * (rate.gpus * self.gpu_hour + rate.cpus * self.cpu_hour)


@dataclass(frozen=True)
class Correction:
    """What a foreseen size is multiplied by, as slices showed it; of inverted lists, the share that is probed falls with the vectors."""

    rows: float = 1.0
    each: float = 1.0
    bytes: float = 1.0
    probed: float = 0.0
    falling: float = 0.0
    at: int = 1

    @classmethod
    def of(cls, pairs: list[tuple[Holds, Holds]]) -> Correction:
        """From what was foreseen of slices and what they held: the last, and, for lists, how they differ."""
        foreseen, held = pairs[-1]
        exact = not foreseen.word
        rows, each, size = (
            (had / said if said and had else 1.0)
            for said, had in ((foreseen.rows, held.rows), (foreseen.each, held.each), (foreseen.bytes, held.bytes))
        )
        falling = 0.0
        if held.lists and (least := min((one for _, one in pairs), key=lambda one: one.rows)).rows < held.rows:
            falling = log(least.probed / held.probed) / log(held.rows / least.rows)
        return cls(1.0 if exact else rows, each, size, held.probed if held.lists else 0.0, min(0.5, max(0.0, falling)), held.rows)

    def applied(self, holds: Holds) -> Holds:
        """The corrected size."""
        if isinstance(holds, Model):
            return holds
        rows = round(holds.rows * self.rows)
        probed = self.probed * (self.at / max(rows, self.at)) ** self.falling if self.probed else holds.probed
        word = "about" if holds.word else ""
        return replace(holds, rows=rows, word=word, each=holds.each * self.each, bytes=holds.bytes * self.bytes, probed=probed)


@dataclass(frozen=True)
class Measured:
    """What a calibration found: rates, and corrections of sizes by stage and part of its output."""

    rates: Rates
    corrections: dict[str, dict[str, Correction]] = field(default_factory=dict)


def forecasts_of(
    stages: Iterable[Settings], names: Iterable[str] = (), corrections: dict[str, dict[str, Correction]] | None = None
) -> Iterator[Forecast]:
    """What each stage will need and make; empty where that depends on inputs that are yet to be made and cannot be foreseen."""
    known = Known()
    for settings, name in zip_longest(stages, names):
        forecast = settings.forecast(known)
        if parts := (corrections or {}).get(name or ""):
            forecast = _corrected(forecast, settings.output, parts)
        yield forecast
        known.expect(forecast.makes)


def _corrected(forecast: Forecast, output: str, parts: dict[str, Correction]) -> Forecast:
    makes = {folder: parts.get(folder[len(output) :].strip("/"), Correction()).applied(holds) for folder, holds in forecast.makes.items()}
    own = forecast.makes.get(output)
    fewer = parts[""].rows if own and own.word == "at most" and "" in parts else 1.0
    return replace(forecast, makes=makes, work={name: amount * fewer for name, amount in forecast.work.items()})


def estimate_of(forecast: Forecast, rates: Rates, name: str, prices: Prices) -> dict[str, Any]:
    """The figures of one stage: memory and disk in bytes and, where its kind has been measured, seconds, GPU hours and cost.

    `error` is twice the standard deviation of the seconds, where that is known.
    """
    found: dict[str, Any] = {"memory_bytes": round(forecast.memory), "output_bytes": round(forecast.bytes)}
    rate = rates.of(name, forecast)
    if rate is None:
        return found if forecast.bytes or forecast.memory else {}
    seconds, error = rate.seconds(forecast)
    gpus = rate.gpus if forecast.gpus < 0 else min(forecast.gpus, rate.gpus)
    found |= {
        "seconds": round(seconds, 2),
        "error": None if error is None else round(error, 2),
        "gpu_hours": round(gpus * seconds / 3600, 4),
    }
    return found | ({"cost": round(prices.of(seconds, rate), 4)} if prices.known(rate) else {}) | {"measured": rate.source}


def total_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of what is left to do, and the stages without figures; of the memory the most. Errors of stages are independent.

    Where nothing is known of the time of any stage, the total has none either.
    """
    left = [row for row in rows if row["state"] != "done"]
    figures = [row["estimate"] for row in left]
    timed = [each for each in figures if "seconds" in each]
    errors = [each["error"] for each in timed]
    times: dict[str, Any] = {
        "seconds": round(sum(each["seconds"] for each in timed), 2),
        "error": None if None in errors else round(sum(error**2 for error in errors) ** 0.5, 2),
        "gpu_hours": round(sum(each["gpu_hours"] for each in timed), 4),
    }
    nothing_known = left and not timed
    total: dict[str, Any] = ({} if nothing_known else times) | {
        "memory_bytes": max((each.get("memory_bytes", 0) for each in figures), default=0),
        "output_bytes": sum(each.get("output_bytes", 0) for each in figures),
        "unknown": [row["stage"] for row in left if "seconds" not in row["estimate"]],
    }
    return total | ({"cost": round(sum(each.get("cost", 0.0) for each in timed), 4)} if any("cost" in each for each in timed) else {})
