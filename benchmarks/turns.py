"""How many times as fast one way of a work is as another, taken in turns: what `small` of a benchmark returns, and `bench.py` keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Way = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """Above 1, ours is faster; `noise` is the share of the value that one turn more or less may move it by, None if unknown."""

    value: float
    noise: float | None


def ratio(ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """The least seconds of `other` by the least of `ours`: other work on the machine only adds to seconds, so the least says most.

    Its noise is how far it moves if the best turn of either is left out; None with one turn.
    """
    value = min(other) / min(ours)
    if min(len(ours), len(other)) < 2:
        return Ratio(value, None)
    seconds = [sorted(each)[:2] for each in (ours, other)]
    return Ratio(value, max(second / best - 1 for best, second in seconds))


def in_turns(
    ways: dict[str, Way], rounds: int, clock: Callable[[], float] = time.perf_counter, warm: bool = True
) -> dict[str, list[float]]:
    """The seconds of each way in each round, by `clock`; a way that returns a float has measured itself. With `warm`, a round before does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + warm):
        for name, way in ways.items():
            begun = clock()
            measured = way()
            taken = measured if isinstance(measured, float) else clock() - begun
            if turn >= warm:
                seconds[name].append(taken)
    return seconds


def ratios(seconds: dict[str, list[float]], other: str) -> dict[str, Ratio]:
    """Every way against the one named `other`."""
    return {f"{name} / {other}": ratio(taken, seconds[other]) for name, taken in seconds.items() if name != other}


def between_commits(folder: Path, files: str, rows: int) -> float:
    """Seconds a row of a stage after its start: from the first to the last commit of its `files`, which have `rows` in all, as many each."""
    times = sorted(file.stat().st_mtime_ns for file in folder.glob(files))
    return (times[-1] - times[0]) / 1e9 / (rows * (len(times) - 1) / len(times))
