"""Measures the rates of a recipe's stages on the cluster at hand: every stage, as it is, on slices of several sizes.

The whole recipe runs four times at small size in a folder next to its output, which is removed: twice tiny, then with many queries and few
passages, and with many passages and few queries, as the time allows. What the stages took gives their rates (`fit`), and what they made
corrects the sizes that were foreseen. The first time also imports libraries and fills caches, as a run does: what it takes longer than its
work belongs to the start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from raydense.errors import why
from raydense.forecast import Forecast, Holds, Known, Model
from raydense.recipes.fit import Point, fitted, settled
from raydense.recipes.planning import Correction, Measured, forecasts_of
from raydense.recipes.rates import START, Rate, Rates, amounts_of, keep_rates, stored_rates
from raydense.recipes.recipe import Recipe, state
from raydense.recipes.small import NoSlice, Small
from raydense.recipes.stage import VERBS, Stage
from raydense.runtime.progress import muted, say
from raydense.runtime.session import ensure_ray, joins_cluster, physical_cpus
from raydense.settings import Settings
from raydense.storage import Place
from raydense.training.loop_settings import LoopSettings

_FOLDER = ".calibration-"
_FIRST_PASSAGES, _FIRST_QUERIES, _FIRST_STEPS = 500, 100, 3
_FIRST_NOISE_S = 1.5
_TRAINING_S = 6.0  # of steps, in each slice
_LARGEST = 0.5  # of the whole, in a slice
_OF_QUERIES, _OF_BOTH = ("queries", "hits", "pairs"), "products"  # work that grows with the queries, and with queries and passages


@dataclass(frozen=True)
class Shares:
    """The shares of the passages and queries of a slice, and the steps of each training."""

    passages: float
    queries: float
    steps: dict[str, int]


@dataclass
class Calibration:
    """What has been measured of a recipe's stages: the work and the seconds of each slice, and what could not be measured.

    `made` has, by stage and part of its output, what each slice's forecast said that it holds, and what it held.
    """

    stages: tuple[Stage, ...]
    full: dict[str, Forecast]
    known: Known
    stored: dict[str, Rate]
    here: Rate
    points: dict[str, list[Point]] = field(default_factory=dict)
    made: dict[str, dict[str, list[tuple[Holds, Holds]]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def rate(self, name: str) -> Rate:
        """The rate of a stage by what has been measured of it, else the stored one; its start is that of the first time in a process."""
        rate, points = self.warm_rate(name), self.points.get(name, [])
        if len(points) < 2 or START not in rate.each:
            return rate
        first = points[0].seconds - sum(rate.each.get(key, 0.0) * amount for key, amount in points[0].work.items())
        return replace(rate, each=rate.each | {START: rate.each[START] + max(0.0, first)})

    def warm_rate(self, name: str) -> Rate:
        """The rate of a stage that the process has run before."""
        forecast, points = self.full[name], self.points.get(name)
        stored = self.stored.get(forecast.kind) or Rate({START: 1.0}, "", "", self.here.cpus, self.here.gpus)
        if not points or not forecast.kind:
            return stored
        return fitted(points[1:] or points, stored, amounts_of(forecast, self.here.cpus), self.here)


def calibrate(recipe: Recipe, seconds: float) -> Measured:
    """The rates of the stages that are not done, and the sizes of what they make; takes about `seconds`, Ray's start apart.

    What is measured is kept for later plans. A stage that reads what cannot be cut (an index, a run or examples of somebody else) is not
    measured: its rates are the stored ones. InputError if no cluster answers.
    """
    ensure_ray()
    begun = time.monotonic()
    foreseen = list(forecasts_of([stage.settings for stage in recipe.stages]))
    known = Known()
    for forecast in foreseen:
        known.expect(forecast.makes)
    full = dict(zip((stage.name for stage in recipe.stages), foreseen, strict=True))
    calibration = Calibration(_needed(recipe), full, known, stored_rates(), _here())
    with _folder(recipe.output) as folder:
        for number, shares in enumerate(_shares(calibration, begun + seconds), 1):
            if number > 1 and time.monotonic() > begun + seconds:
                say("calibrate: the time is over; more of it (--calibrate-seconds) is more exact")
                break
            small = Small(
                folder / f"slice-{number}", recipe.stages, known, shares.passages, shares.queries, _files(calibration), shares.steps
            )
            _run(calibration, small, number, begun + 2 * seconds)
            # a cluster that had scaled down has added nodes for the slice
            calibration.here = max(calibration.here, _here(), key=lambda here: (here.gpus, here.cpus))
            small.folder.delete()
    for name, reason in calibration.refused.items():
        say(f"calibrate: {name} is not measured: {reason}")
    rates = {name: calibration.rate(name) for name in calibration.points if full[name].kind}
    keep_rates(_to_keep(calibration, rates))
    return Measured(Rates(calibration.stored, rates), _corrections(calibration))


def _to_keep(calibration: Calibration, rates: dict[str, Rate]) -> dict[str, Rate]:
    """The rates for later plans by kind; of several stages of a kind each counts for what the ones before it did not show."""
    kept: dict[str, Rate] = {}
    for name, rate in rates.items():
        kind = calibration.full[name].kind
        if found := settled(rate, kept.get(kind) or calibration.stored.get(kind)):
            kept[kind] = found
    return kept


def _needed(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages that are not done, and those that they need; not imports and models that are done, which are read in full."""
    done = {stage.name for stage in recipe.stages if state(stage)[0] == "done"}
    needed: set[str] = set()
    for stage in reversed(recipe.stages):
        kept = stage.name in done and (stage.verb == "import" or isinstance(stage.settings, LoopSettings))
        if stage.name not in done or (stage.name in needed and not kept):
            needed |= {stage.name, *stage.needs}
        elif kept:
            needed.discard(stage.name)
    return tuple(stage for stage in recipe.stages if stage.name in needed)


def _here() -> Rate:
    """Of no stage: says on which cluster it was measured, and when."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    resources = ray.cluster_resources()
    cpus = int(resources.get("CPU", 0)) if joins_cluster() else physical_cpus()
    gpus = int(resources.get("GPU", 0))
    kinds = sorted(key.partition(":")[2] for key in resources if key.startswith("accelerator_type:"))
    parts = [f"{len(nodes)} nodes"] if len(nodes) > 1 else []
    parts += [f"{cpus} CPUs{_cpu_name()}"] + ([f"{gpus} GPUs ({', '.join(kinds)})" if kinds else f"{gpus} GPUs"] if gpus else [])
    return Rate({}, ", ".join(parts), date.today().isoformat(), cpus, gpus)


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f" ({line.partition(':')[2].strip()})"
    return ""


@contextmanager
def _folder(output: Place) -> Iterator[Place]:
    """A folder in the output that is removed at the end, as the output is if it was not there; what a killed calibration left is removed too."""
    import psutil

    there = output.exists()
    for name in output.entries() if there else []:
        number = name.removeprefix(_FOLDER)
        if name.startswith(_FOLDER) and not (number.isdigit() and psutil.pid_exists(int(number))):
            (output / name).delete()
    folder = output / f"{_FOLDER}{os.getpid()}"
    try:
        yield folder
    finally:
        folder.delete()
        if not there and not output.entries():
            output.delete()


def _files(calibration: Calibration) -> int:
    return max(4, 2 * int(calibration.here.cpus))


def _shares(calibration: Calibration, end: float) -> Iterator[Shares]:
    """A tiny slice, twice; then, by what was measured so far, one of more queries and one of more passages that end in time."""
    passages, queries = _most(calibration, "corpus"), _most(calibration, "queries")
    first = Shares(min(_LARGEST, _FIRST_PASSAGES / passages), min(_LARGEST, _FIRST_QUERIES / queries), {})
    trainings = [stage.name for stage in calibration.stages if isinstance(stage.settings, LoopSettings)]
    for _ in range(2):
        yield Shares(first.passages, first.queries, dict.fromkeys(trainings, _FIRST_STEPS))
    steps = {name: _steps(calibration, name) for name in trainings}
    for number, of_passages, of_queries in ((1, 1 / 3, 1.0), (2, 1.0, 1 / 3)):
        left = (end - time.monotonic()) / (3 - number)
        growth = _growth(calibration, left, _LARGEST / first.passages, _LARGEST / first.queries)
        most = [min(_LARGEST, growth * share) for share in (first.passages, first.queries)]
        taken = {name: max(2, count // 3) if number == 1 else count for name, count in steps.items()}
        yield Shares(most[0] * of_passages, most[1] * of_queries, taken)


def _most(calibration: Calibration, kind: str) -> int:
    """The rows of the largest input of a kind."""
    paths = {path for stage in calibration.stages for _, of, _, path in stage.settings.given_inputs() if of == kind}
    return max([held.rows for path in paths if (held := calibration.known.of(path))], default=1)


def _steps(calibration: Calibration, name: str) -> int:
    """The steps of a training that take some seconds; at most half of all."""
    points, full = calibration.points.get(name), calibration.full[name].work.get("steps", 4.0)
    if not points:
        return _FIRST_STEPS
    amounts, rate = points[0].work, calibration.warm_rate(name)
    a_step = sum(rate.each.get(key, 0.0) * amount for key, amount in amounts.items() if key != START) / max(1.0, amounts["steps"])
    return int(max(2, min(full * _LARGEST, _TRAINING_S / max(a_step, 1e-6))))


def _growth(calibration: Calibration, left: float, passages: float, queries: float) -> float:
    """How much larger than the first a slice may be to take the time that is left; at most `passages` and `queries` times.

    That a third of the one or the other is taken counts for the products alone.
    """

    def seconds(growth: float) -> float:
        total = 0.0
        for name, points in calibration.points.items():
            rate, amounts = calibration.warm_rate(name), points[0].work
            each = {key: rate.each.get(key, 0.0) * amount for key, amount in amounts.items()}
            total += each.pop(START)
            if "steps" in amounts:
                total += _TRAINING_S
                continue
            of_passages, of_queries = min(growth, passages), min(growth, queries)
            grown = {_OF_BOTH: of_passages * of_queries / 3} | dict.fromkeys(_OF_QUERIES, of_queries)
            total += sum(amount * grown.get(key, of_passages) for key, amount in each.items())
        return total

    low, high = 1.0, max(1.0, passages, queries)
    if seconds(high) <= left:
        return high
    for _ in range(30):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if seconds(middle) <= left else (low, middle)
    return low


def _run(calibration: Calibration, small: Small, number: int, end: float) -> None:
    """Run the stages at small size, and note what each took and made; one that fails is not measured, nor what needs it."""
    known = Known()
    for stage in calibration.stages:
        missing = [need for need in stage.needs if need in calibration.refused]
        if missing:
            calibration.refused.setdefault(stage.name, f"needs {missing[0]}")
            continue
        if time.monotonic() > end:
            return
        say(f"calibrate: slice {number} of 4: {stage.name}")
        try:
            settings = small.settings(stage)
            begun = time.monotonic()
            with muted():
                VERBS[stage.verb].run(settings)
            took = time.monotonic() - begun
        except NoSlice as reason:
            calibration.refused[stage.name] = str(reason)
        except Exception as error:  # of any kind: the plan has the other stages
            calibration.refused[stage.name] = f"a slice of it failed: {why(error)}"
        else:
            calibration.refused.pop(stage.name, None)  # a smaller slice of it failed
            _note(calibration, stage, settings, known, took, _FIRST_NOISE_S if number == 1 else 0.0)


def _note(calibration: Calibration, stage: Stage, settings: Settings, known: Known, seconds: float, noise: float) -> None:
    """Note the time and the work that the forecast says, corrected where that counts at most so many queries; and what the stage made."""
    forecast, whole = settings.forecast(known), 1.0
    for folder, holds in forecast.makes.items():
        actual = known.of(folder)
        if actual is None or isinstance(holds, Model):
            continue
        part = folder[len(settings.output) :].strip("/")
        calibration.made.setdefault(stage.name, {}).setdefault(part, []).append((holds, actual))
        if holds.word == "at most" and not part and holds.rows:
            whole = actual.rows / holds.rows
    known.expect({folder: holds for folder, holds in forecast.makes.items() if isinstance(holds, Model)})
    amounts = amounts_of(forecast, calibration.here.cpus)
    work = {key: amount if key == START else amount * whole for key, amount in amounts.items()}
    calibration.points.setdefault(stage.name, []).append(Point(work, seconds, noise))


def _corrections(calibration: Calibration) -> dict[str, dict[str, Correction]]:
    """By stage and part, what the sizes of the full run are to be multiplied by: what the last slice held, by what was foreseen of it."""
    return {name: {part: Correction.of(pairs) for part, pairs in parts.items()} for name, parts in calibration.made.items()}
