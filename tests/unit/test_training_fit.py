"""What a training says before its first step."""

import pytest

from raydense.training.fit import _say_of_patience
from raydense.training.method import dev_interval
from raydense.training.settings import TrainSettings


@pytest.mark.parametrize(
    ("dev", "steps", "said"),
    [
        ({"patience": 10}, 1_000, "dev.patience 10 cannot end this training early: the dev metric is measured every 100 of 1,000 steps"),
        ({"patience": 9}, 1_000, None),
        ({"patience": 7}, 7, "measured every 1 of 7 steps"),
        ({"patience": 3, "every": 400}, 1_000, "measured every 400 of 1,000 steps; lower dev.patience or dev.every"),
        ({"patience": 2, "every": 400}, 1_000, None),
        ({}, 1_000, None),
        (None, 1_000, None),
    ],
)
def test_patience_that_ends_nothing_is_said(
    dev: dict[str, int] | None, steps: int, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {} if dev is None else {"dev": {"qrels": "q", **dev}}
    folders = {key: key for key in ("model", "corpus", "queries", "examples", "output")}
    settings = TrainSettings(objective="retriever", **folders, **given)
    _say_of_patience(settings, dev_interval(settings, steps), steps)
    printed = capsys.readouterr().err
    assert said in printed if said else not printed
