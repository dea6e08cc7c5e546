"""Rates fitted to slices: exact without noise, with the stored rates where the slices show nothing, and with errors that hold."""

from dataclasses import replace

import numpy as np
import pytest

from raydense.data.settings import MixSettings
from raydense.forecast import Forecast, Holds, Known
from raydense.recipes.calibration import Calibration, _most, _to_keep
from raydense.recipes.fit import Point, fitted, settled
from raydense.recipes.planning import Correction
from raydense.recipes.rates import Rate, amounts_of
from raydense.recipes.stage import Stage

STORED = Rate({"start": 5.0, "hits": 2e-6, "products": 1e-9}, "", "", 2, 0)
HERE = Rate({}, "here", "today", 2, 0)
FULL = Forecast(kind="search", work={"hits": 2e7, "products": 4e11})
SLICES = [(400, 2_000), (3_000, 60_000), (9_000, 20_000), (9_000, 60_000)]


def points(start: float, hits: float, products: float, rng: np.random.Generator | None = None) -> list[Point]:
    found = []
    for queries, passages in SLICES:
        work = {"start": 1.0, "hits": queries * 100.0, "products": float(queries) * passages}
        took = start + hits * work["hits"] + products * work["products"]
        found.append(Point(work, took * (1 + (rng.normal() * 0.03 if rng else 0))))
    return found


def test_slices_give_the_rates_and_the_start() -> None:
    rate = fitted(points(3.0, 3e-5, 4e-8), STORED, amounts_of(FULL, 2), HERE)
    assert rate.each["start"] == pytest.approx(3.0, rel=0.1)
    assert rate.seconds(FULL)[0] == pytest.approx(3.0 + 2e7 * 3e-5 + 4e11 * 4e-8, rel=0.1)
    assert rate.source == "here, today"


def test_the_error_covers_what_noise_does() -> None:
    truth, within = 3.0 + 2e7 * 3e-5 + 4e11 * 4e-8, 0
    for seed in range(50):
        seconds, error = fitted(points(3.0, 3e-5, 4e-8, np.random.default_rng(seed)), STORED, amounts_of(FULL, 2), HERE).seconds(FULL)
        within += abs(seconds - truth) <= (error or 0.0)
    assert within >= 40


def test_work_that_the_slices_do_not_show_has_the_factor_of_the_rest_and_a_large_error() -> None:
    slices = points(3.0, 2e-5, 0.0)
    slices = [Point({**one.work, "products": 1.0}, one.seconds) for one in slices]
    seconds, error = fitted(slices, STORED, amounts_of(FULL, 2), HERE).seconds(FULL)
    assert seconds == pytest.approx(3.0 + 2e7 * 2e-5 + 4e11 * 1e-9 * 10, rel=0.2), "hits take ten times what is stored, so products do"
    assert error is not None
    assert error > 0.5 * seconds


def test_work_that_grows_together_is_one_group() -> None:
    slices = [Point({"start": 1.0, "hits": n * 1e6, "products": n * 1e9}, 1.0 + 4.0 * n) for n in (1.0, 2.0, 3.0)]
    rate = fitted(slices, STORED, {"start": 1.0, "hits": 1e7, "products": 1e10}, HERE)
    assert rate.unknowns == (("start",), ("hits", "products"))
    assert rate.seconds(Forecast(work={"hits": 1e7, "products": 1e10}))[0] == pytest.approx(41.0, rel=0.05)


def test_no_rate_is_below_nothing() -> None:
    falling = [Point({"start": 1.0, "hits": n, "products": n * n}, 5.0 - n) for n in (1.0, 2.0, 3.0)]
    assert min(fitted(falling, STORED, {"start": 1.0, "hits": 9.0, "products": 81.0}, HERE).each.values()) >= 0


def test_sizes_are_corrected_by_what_slices_held() -> None:
    pairs = [(Holds(100, "about", each=10, bytes=50), Holds(80, each=20, bytes=100))]
    assert Correction.of(pairs).applied(Holds(1_000, "about", 10, 500)) == Holds(800, "about", 20, 1_000)
    exact = [(Holds(100, each=10, bytes=50), Holds(117, each=10, bytes=60))]
    assert Correction.of(exact).applied(Holds(1_000, each=10, bytes=500)).rows == 1_000, "rows that are known stay"


def test_the_share_of_lists_that_is_probed_falls_as_it_did_between_slices() -> None:
    held = [Holds(1_000, each=8, bytes=1, probed=0.4, lists=16), Holds(4_000, each=8, bytes=1, probed=0.2, lists=64)]
    pairs = [(replace(one, probed=0.05), one) for one in held]
    corrected = Correction.of(pairs).applied(Holds(16_000, each=8, bytes=1, probed=0.05, lists=256))
    assert corrected.probed == pytest.approx(0.1)


def test_slices_whose_work_is_lost_in_noise_leave_the_stored_rates() -> None:
    stored = replace(STORED, each={"start": 6.0, "hits": 4e-6, "products": 1e-11})
    full = Forecast(kind="search", work={"hits": 1e6, "products": 1e9})
    within = 0
    for seed in range(50):
        noise = np.random.default_rng(seed)
        slices = [
            Point({"start": 1.0, "hits": 100.0 * queries, "products": float(queries * passages)}, 6.0 + 0.2 * noise.normal())
            for queries, passages in ((100, 500), (100, 500), (300, 700), (150, 1_500))
        ]
        rate = fitted(slices, stored, amounts_of(full, 2), HERE)
        seconds, error = rate.seconds(full)
        within += abs(seconds - 10.0) <= (error or 0.0)
        assert settled(rate, stored) is None
    assert within >= 45


def test_what_slices_show_is_settled() -> None:
    rate = fitted(points(3.0, 3e-5, 4e-8), STORED, amounts_of(FULL, 2), HERE)
    assert settled(rate, STORED) == rate
    slices = [Point({**one.work, "products": 1.0}, one.seconds) for one in points(3.0, 2e-5, 0.0)]
    of_hits = settled(fitted(slices, STORED, amounts_of(FULL, 2), HERE), STORED)
    assert of_hits is not None
    assert of_hits.each["hits"] == pytest.approx(2e-5, rel=0.1)
    assert of_hits.each["products"] == STORED.each["products"]


@pytest.mark.parametrize("wrong", [0.0, 0.05, 1e3])
def test_a_stored_rate_that_is_absent_or_far_off_gives_way(wrong: float) -> None:
    stored = replace(STORED, each={"start": 3.0, "hits": 3e-5, "products": 4e-8 * wrong})
    rate = fitted(points(3.0, 3e-5, 4e-8), stored, amounts_of(FULL, 2), HERE)
    assert rate.seconds(FULL)[0] == pytest.approx(3.0 + 2e7 * 3e-5 + 4e11 * 4e-8, rel=0.15)


def test_what_is_kept_of_work_that_was_not_shown_counts_the_cpus() -> None:
    slices = [Point({**one.work, "products": 1.0}, one.seconds) for one in points(3.0, 2e-5, 0.0)]
    of_hits = settled(fitted(slices, STORED, amounts_of(FULL, 8), replace(HERE, cpus=8)), STORED)
    assert of_hits is not None
    assert of_hits.each["products"] == STORED.each["products"] / 4


def test_of_several_stages_of_a_kind_each_counts_for_what_the_others_did_not_show() -> None:
    many, few = points(3.0, 3e-5, 4e-8), [Point(one.work, 3.1) for one in points(3.0, 0.0, 0.0)[:1]]
    for order in (("many", "few"), ("few", "many")):
        calibration = Calibration((), dict.fromkeys(order, FULL), Known(), {"search": STORED}, HERE)
        rates = {name: fitted({"many": many, "few": few}[name], STORED, amounts_of(FULL, 2), HERE) for name in order}
        assert _to_keep(calibration, rates)["search"].each["hits"] == pytest.approx(3e-5, rel=0.1)
    assert _to_keep(calibration, {"few": rates["few"]}) == {}


def test_the_largest_input_may_stand_in_a_list() -> None:
    parts = {key: [f"{name}=/x/{name}/{key}" for name in "ab"] for key in ("examples", "queries", "corpus")}
    known = Known()
    known.expect({"/x/a/queries": Holds(10), "/x/b/queries": Holds(70)})
    stages = (Stage("mixed", "mix", MixSettings(**parts, output="/x/o"), ()),)
    assert _most(Calibration(stages, {}, known, {}, HERE), "queries") == 70
