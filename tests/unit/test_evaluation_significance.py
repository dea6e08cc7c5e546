"""Paired tests against every sign flip there is, scipy's own permutation test, and published adjusted p-values."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from raydense.evaluation import significance
from raydense.evaluation.report import significance_mark
from raydense.evaluation.significance import compare, compare_all, flips_for, holm, sign_flip


def every_flip(gaps: np.ndarray) -> float:
    sums = np.abs(np.array(list(product([-1, 1], repeat=len(gaps)))) @ gaps)
    return float((sums >= abs(gaps.sum()) - 1e-12).mean())


@pytest.mark.parametrize("seed", range(4))
def test_sign_flips_come_near_the_exact_test(seed: int):
    rng = np.random.default_rng(seed)
    gaps = rng.normal(0.3, 1, 12)
    repeated = np.round(gaps)[np.round(gaps) != 0]
    for some in (gaps, repeated):
        exact = every_flip(some)
        assert sign_flip(some) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 10_000) + 1e-3)


def test_equals_scipy_on_many_queries():
    rng = np.random.default_rng(1)
    first, other = rng.choice([0, 0.1, 0.5, 1.0], 400), rng.choice([0, 0.1, 0.5, 1.0], 400, p=[0.2, 0.25, 0.25, 0.3])
    found = compare(other, first)
    theirs = stats.permutation_test((other - first,), np.mean, permutation_type="samples", n_resamples=9_999, rng=2)
    assert found.p_randomisation == pytest.approx(theirs.pvalue, abs=0.02)
    gaps = other - first
    t = gaps.mean() / (gaps.std(ddof=1) / np.sqrt(len(gaps)))
    assert found.p_t_test == pytest.approx(2 * stats.t.sf(abs(t), len(gaps) - 1))
    assert found.difference == pytest.approx(gaps.mean())
    assert (found.wins, found.ties, found.losses) == ((gaps > 0).sum(), (gaps == 0).sum(), (gaps < 0).sum())
    assert compare(other, first) == found


@pytest.mark.parametrize("shift", [0.01, 0.03, 1.0])
def test_gaps_of_many_sizes_have_the_p_value_of_as_many_flips(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = np.random.default_rng(7).normal(shift, 1, 5_100)
    found = sign_flip(gaps)
    monkeypatch.setattr(significance, "_MOST_SIZES", len(gaps))
    assert found == pytest.approx(sign_flip(gaps), abs=0.02)
    assert found >= 1 / 10_001


def test_no_difference_and_one_query():
    same = compare(np.array([0.5, 1.0]), np.array([0.5, 1.0]))
    assert (same.ties, same.p_t_test, same.p_randomisation) == (2, 1.0, 1.0)
    one = compare(np.array([1.0]), np.array([0.0]))
    assert (one.wins, one.p_t_test, one.p_randomisation) == (1, None, 1.0)


def test_holm_equals_the_adjusted_p_values_of_r():
    """p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") and a tie at 1."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_difference_as_clear_as_can_be_stays_significant_among_many():
    """With 10,000 flips the smallest p of 120 comparisons would be 0.012, which has one mark."""
    clear = (np.full(40, 1.0), np.zeros(40))
    few, many = (compare_all({f"v{n}": {"m": clear} for n in range(number)})["v0"]["m"] for number in (50, 120))
    assert few["p_randomisation"] == 1 / 10_001
    assert many["p_randomisation"] == 1 / (flips_for(120) + 1)
    assert significance_mark(few) == significance_mark(many) == "▲▲"


def test_all_names_and_metrics_are_corrected_together():
    """As p.adjust of R writes it: cummax(sort(p) * (n:1)), at most 1. What holds alone and not among four has no mark."""
    rng, pairs = np.random.default_rng(3), {}
    for name, gap in (("one", 1.5), ("other", 0.75)):
        for metric, share in (("RR@10", 1.0), ("R@1", 0.6)):
            first = rng.normal(size=20)
            pairs.setdefault(name, {})[metric] = (first + rng.normal(gap * share, 1, 20), first)
    found = [of_metric for of_name in compare_all(pairs).values() for of_metric in of_name.values()]
    alone = np.array([compare(*pair).p_randomisation for of_name in pairs.values() for pair in of_name.values()])
    assert [one["p_randomisation"] for one in found] == alone.tolist()
    order = np.argsort(alone)
    adjusted = np.minimum(1, np.maximum.accumulate(alone[order] * np.arange(4, 0, -1)))
    assert [one["p_holm"] for one in found] == pytest.approx(adjusted[np.argsort(order)].tolist())
    raised = [one for one in found if one["p_randomisation"] < 0.05 <= one["p_holm"]]
    assert raised
    assert {significance_mark(one) for one in raised} == {""}
    assert {significance_mark(one) for one in found} > {""}
