"""What worker 0 says of a dev measurement."""

from __future__ import annotations

import pytest

from raydense.errors import InputError
from raydense.training.registered import State
from raydense.training.settings import DevSettings
from raydense.training.status import dev_measured


@pytest.mark.parametrize(
    ("state", "misses", "patience", "line"),
    [
        (State("fp32", step=20), 0, 0, "dev after step 20: mrr@10 0.2500, ndcg@10 0.5000"),
        (State("fp32", step=0, best=0.25, best_step=0), 0, 3, "dev before the first step: mrr@10 0.2500, ndcg@10 0.5000"),
        (
            State("fp32", step=1_000, best=0.25, best_step=1_000),
            0,
            3,
            "dev after step 1,000: mrr@10 0.2500, ndcg@10 0.5000, the best mrr@10 so far",
        ),
        (
            State("fp32", step=20, best=0.3, best_step=0),
            2,
            3,
            "dev after step 20: mrr@10 0.2500, ndcg@10 0.5000; the best mrr@10 is 0.3000, before the first step; 2 of 3 in a row without a better one",
        ),
        (
            State("fp32", step=20, best=0.3, best_step=10),
            1,
            0,
            "dev after step 20: mrr@10 0.2500, ndcg@10 0.5000; the best mrr@10 is 0.3000, after step 10",
        ),
    ],
)
def test_a_measurement_is_said_with_its_place_among_all(state: State, misses: int, patience: int, line: str) -> None:
    assert dev_measured({"mrr@10": 0.25, "ndcg@10": 0.5}, "mrr@10", state, misses, patience) == line


def test_the_last_step_is_kept_of_a_training_that_makes_all() -> None:
    assert DevSettings(qrels="q", keep="last", patience=0).keep == "last"
    with pytest.raises(InputError, match=r"dev.keep last makes all steps: it does not use dev.patience"):
        DevSettings(qrels="q", keep="last", patience=2)
