"""Fits the rates of a stage to what its slices took, with the uncertainty of each: a linear model with the stored rates as what is expected.

seconds = start + sum over groups g of s_g * u_g, where u_g is the stored seconds of the work of the group, and s_g >= 0 the unknown factor.
Work whose amounts grow together in all slices cannot be told apart, and is one group. What the slices do not show, as a part of the work
that is negligible in them, stays at the factor of the rest, and adds to the error. This is Bayesian linear regression with a normal prior
(Bishop, Pattern Recognition and Machine Learning, 2006, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydense.recipes.rates import START, Rate

_NOISE_S, _NOISE = 0.15, 0.05  # of one measurement: seconds, and the share of what it took
_UNSURE = 1.0  # what a factor may differ from that of the other work, as its standard deviation
_ALIKE = 0.02
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
    unit = {name: stored.each.get(name, 0.0) or 1e-12 for name in names}
    took = np.array([point.seconds for point in points])
    columns = [[1.0] * len(points), *([sum(point.work[name] * unit[name] for name in group) for point in points] for group in groups)]
    design = np.array(columns).T
    noise = np.array([point.noise for point in points])
    deviation = np.sqrt(_NOISE_S**2 + (_NOISE * took) ** 2 + noise**2)
    common = _common(design, took, deviation, stored.each.get(START, 1.0))
    expected = np.array([common[0], *[common[1]] * len(groups)])
    unsure = np.array([max(1.0, expected[0]), *[max(_UNSURE * common[1], 1e-9)] * len(groups)])
    factors, spread = _posterior(design, took, deviation, expected, unsure)
    misfit = float(np.mean(((took - design @ factors) / deviation) ** 2))
    each = {START: float(factors[0])}
    each |= {name: unit[name] * float(factor) for group, factor in zip(groups, factors[1:], strict=True) for name in group}
    relative = spread * max(1.0, misfit) / np.outer(safe := np.where(factors > 1e-9, factors, np.inf), safe)
    return Rate(each, here.cluster, here.date, here.cpus, here.gpus, ((START,), *groups), tuple(map(tuple, relative.tolist())))


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


def _common(design: Array, took: Array, deviation: Array, start: float) -> tuple[float, float]:
    """The start, and one factor of all work, that fit best; both at least 0."""
    both = np.stack([design[:, 0], design[:, 1:].sum(axis=1)], axis=1)
    (begun, factor), _ = _posterior(both, took, deviation, np.array([start, 1.0]), np.array([10.0 + start, 100.0]))
    return float(begun), max(float(factor), 1e-3)


def _posterior(design: Array, took: Array, deviation: Array, expected: Array, unsure: Array) -> tuple[Array, Array]:
    """The mean, no entry below 0, and the covariance of the unknowns."""
    free = np.ones(len(expected), bool)
    while True:
        columns = design[:, free] / deviation[:, None]
        spread = np.linalg.inv(columns.T @ columns + np.diag(unsure[free] ** -2.0))
        mean = np.zeros(len(expected))
        mean[free] = spread @ (columns.T @ (took / deviation) + expected[free] / unsure[free] ** 2)
        if (mean >= 0).all():
            break
        free &= mean > 0
    whole = np.zeros((len(expected), len(expected)))
    whole[np.ix_(free, free)] = spread
    return mean, whole
