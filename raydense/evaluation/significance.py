"""Is a difference between two runs more than chance? Paired tests over queries, corrected for how many are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_FLIPS = 10_000
_FLIPS_EACH = 200  # for each of many comparisons, so that the smallest p is 0.005 at most after their correction
_SEED = 20_070_611
_BLOCK = 1 << 22
_MOST_SIZES = 5_000  # of gaps that are flipped, in seconds; the sum of more is as good as normal
BY_NORMAL = f"where more than {_MOST_SIZES:,} differences are of different size, by the normal distribution"


@dataclass(frozen=True)
class Comparison:
    """One run against the first by one metric: the difference of the means, wins, ties and losses, and two p-values."""

    difference: float
    wins: int
    ties: int
    losses: int
    p_t_test: float | None
    p_randomisation: float


def flips_for(comparisons: int) -> int:
    """How many random sign flips a test takes that is corrected for so many comparisons."""
    return max(_FLIPS, _FLIPS_EACH * comparisons)


def compare(values: NDArray[np.float64], first: NDArray[np.float64], flips: int = _FLIPS) -> Comparison:
    """Compare the per-query values of a run with the first run's, both float64 [queries], in the same order; a query with NaN is left out.

    Two-sided, paired: Student's t-test, and Fisher's randomisation test of the mean difference (Smucker, Allan and Carterette
    2007) with `flips` random sign flips from a fixed seed, as `sign_flip` counts them. Where no query differs both p-values are 1.
    """
    there = ~np.isnan(values - first)
    values, first = values[there], first[there]
    gaps = values - first
    same = np.isclose(gaps, 0.0, atol=1e-12)
    wins, losses = int((gaps[~same] > 0).sum()), int((gaps[~same] < 0).sum())
    if same.all():
        return Comparison(0.0, 0, len(gaps), 0, 1.0, 1.0)
    spread = len(gaps) > 1 and float(np.ptp(gaps)) > 0
    t_test = float(stats.ttest_rel(values, first).pvalue) if spread else None
    return Comparison(float(gaps.mean()), wins, int(same.sum()), losses, t_test, sign_flip(gaps[~same], flips))


Values = NDArray[np.float64]


def compare_all(pairs: Mapping[str, Mapping[str, tuple[Values, Values]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """`compare` for each name and metric of `pairs`, with `p_holm`: the randomisation p-values are corrected together, by Holm.

    Each takes the flips of `flips_for` all of them.
    """
    keys = [(name, metric) for name, of in pairs.items() for metric in of]
    compared = [compare(*pairs[name][metric], flips_for(len(keys))) for name, metric in keys]
    corrected = holm([c.p_randomisation for c in compared])
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in pairs}
    for (name, metric), comparison, p_holm in zip(keys, compared, corrected, strict=True):
        found[name][metric] = asdict(comparison) | {"p_holm": p_holm}
    return found


def sign_flip(gaps: NDArray[np.float64], flips: int = _FLIPS) -> float:
    """The share of so many random sign flips whose sum is as far from 0 as the observed one; the observed one counts too.

    Gaps of equal size are flipped together (the number of plus signs is binomial), so that 10^5 queries cost little. Of more sizes than
    `_MOST_SIZES` the share is that of the normal distribution with the variance of the sum, which it comes near as the flips grow.
    """
    sizes, counts = np.unique(np.round(np.abs(gaps), 12), return_counts=True)
    observed = abs(float(gaps.sum())) * (1 - 1e-9)
    if len(sizes) > _MOST_SIZES:
        return (float(2 * stats.norm.sf(observed / np.linalg.norm(gaps))) * flips + 1) / (flips + 1)
    rng = np.random.default_rng(_SEED)
    rows = max(1, _BLOCK // len(sizes))
    far = 0
    for start in range(0, flips, rows):
        plus = rng.binomial(counts, 0.5, size=(min(rows, flips - start), len(sizes)))
        far += int((np.abs((2 * plus - counts) @ sizes) >= observed).sum())
    return (far + 1) / (flips + 1)


def holm(p_values: list[float]) -> list[float]:
    """The p-values adjusted for their number (Holm 1979): compare each with the significance level directly."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    highest = 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted.tolist()
