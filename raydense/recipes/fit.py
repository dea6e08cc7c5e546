"""Fits the rates of a stage to what its slices took, with the uncertainty of each: a linear model with the stored rates as what is expected.

seconds = start + sum over groups g of s_g * u_g, where u_g is the stored seconds of the work of the group, and s_g > 0 the unknown factor.
Work whose amounts grow together in all slices cannot be told apart, and is one group. What the slices do not show, as a part of the work
that is negligible in them, stays at the factor of the rest, and that at the stored rates; both add to the error. The logarithms of the
start and the factors have normal priors; given are the most likely ones, and their covariance by Laplace's approximation (Bishop, Pattern
Recognition and Machine Learning, 2006, section 4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydense.recipes.rates import START, Rate

_NOISE_S, _NOISE = 0.15, 0.05  # of one measurement: seconds, and the share of what it took
# Standard deviations of logarithms: of a start, of all work beside the stored rates, which may be of another machine, and of a group beside it.
_START, _STORED, _GROUP = 1.5, 1.5, 1.0
_ALIKE, _ITERATIONS, _FAR = 0.02, 100, 4.0
_SETTLED = 0.5  # the relative standard deviation of a rate that is better known than a stored one, of another machine or model
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """The amounts of work of a slice, START among them, what it took, and its further noise in seconds."""

    work: dict[str, float]
    seconds: float
    noise: float = 0.0


def fitted(points: Sequence[Point], stored: Rate, goal: dict[str, float], here: Rate) -> Rate:
    """The rate of a stage from its slices; `goal` is the work of the full run, and `here` says where it was measured."""
    names = [name for name in goal if name != START]
    groups = _groups(names, [point.work for point in points] + [goal])
    unit = {name: stored.each.get(name, 0.0) or _guess(name, points) for name in names}
    took = np.array([point.seconds for point in points])
    columns = [[1.0] * len(points), *([sum(point.work[name] * unit[name] for name in group) for point in points] for group in groups)]
    design = np.array(columns).T
    noise = np.array([point.noise for point in points])
    deviation = np.sqrt(_NOISE_S**2 + (_NOISE * took) ** 2 + noise**2)
    start = max(stored.each.get(START, 1.0), 0.1)
    both = np.stack([design[:, 0], design[:, 1:].sum(axis=1)], axis=1)
    (begun, factor), spread = _most_likely(both, took, deviation, np.array([start, 1.0]), np.array([_START, _STORED]))
    expected = np.array([begun, *[factor] * len(groups)])
    unsure = np.array([_START, *[np.hypot(_GROUP, spread[1, 1] ** 0.5)] * len(groups)])
    factors, spread = _most_likely(design, took, deviation, expected, unsure)
    misfit = float(np.mean(((took - design @ factors) / deviation) ** 2))
    each = {START: float(factors[0])}
    each |= {name: unit[name] * float(factor) for group, factor in zip(groups, factors[1:], strict=True) for name in group}
    relative = tuple(map(tuple, (spread * max(1.0, misfit)).tolist()))
    return Rate(each, here.cluster, here.date, here.cpus, here.gpus, ((START,), *groups), relative)


def settled(rate: Rate, stored: Rate | None) -> Rate | None:
    """What to keep of a fitted rate for plans of other sizes: work that the slices say too little of has the stored rate; None if all has.

    A stored rate is of all CPUs of its cluster, which may be more or fewer.
    """
    shown = [row[number] ** 0.5 <= _SETTLED for number, row in enumerate(rate.spread)]
    if stored is None or not rate.unknowns:
        return rate
    if not any(shown[1:]):
        return None
    each, scale = dict(rate.each), max(1.0, stored.cpus) / max(1.0, rate.cpus)
    for names, known in zip(rate.unknowns, shown, strict=True):
        for name in () if known else names:
            if name != START and name in stored.each:
                each[name] = stored.each[name] * scale
    return replace(rate, each=each)


def _guess(name: str, points: Sequence[Point]) -> float:
    """A unit for work without a stored rate: as if the slices had taken all their time for it."""
    return max(max(point.seconds, 0.1) / max(1.0, point.work[name]) for point in points)


def _groups(names: list[str], points: list[dict[str, float]]) -> list[tuple[str, ...]]:
    """The names of work, those together whose amounts are proportional over all points."""
    groups: list[list[str]] = []
    for name in names:
        amounts = np.array([point[name] for point in points])
        for group in groups:
            others = np.array([point[group[0]] for point in points])
            ratio = amounts / np.maximum(others, 1e-30)
            if ratio.max() <= (1 + _ALIKE) * ratio.min():
                group.append(name)
                break
        else:
            groups.append([name])
    return [tuple(group) for group in groups]


def _most_likely(design: Array, took: Array, deviation: Array, expected: Array, unsure: Array) -> tuple[Array, Array]:
    """The most likely factors, all above 0, and the covariance of their logarithms, which is that of their relative errors.

    Sought from several sides: where a factor is far too small, its work is lost in the rest, and nothing says that it is larger.
    """
    center = np.log(expected)

    def misses(logs: Array) -> Array:
        return np.concatenate([(design @ np.exp(logs) - took) / deviation, (logs - center) / unsure])

    def slope(logs: Array) -> Array:
        return np.concatenate([design * np.exp(logs) / deviation[:, None], np.diag(1 / unsure)])

    def descended(at: Array) -> Array:
        for _ in range(_ITERATIONS):
            here, now = slope(at), float(np.sum(misses(at) ** 2))
            step = -np.linalg.solve(here.T @ here, here.T @ misses(at))
            step *= min(1.0, 1.0 / max(1e-9, np.abs(step).max()))
            while np.sum(misses(at + step) ** 2) > now and np.abs(step).max() > 1e-9:
                step = step / 2
            at = at + step
            if np.abs(step).max() < 1e-6:
                break
        return at

    sides = [center, *(center + far * one for one in np.eye(len(center))[1:] for far in (_FAR, 2 * _FAR)), center + _FAR]
    best = min((descended(side) for side in sides), key=lambda logs: float(np.sum(misses(logs) ** 2)))
    return np.exp(best), np.asarray(np.linalg.inv(slope(best).T @ slope(best)), np.float64)
