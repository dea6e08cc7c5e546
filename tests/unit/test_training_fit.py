"""What a training says before its first step and after its last, and what it records of the workers that it started one after another."""

from pathlib import Path
from typing import Any

import pytest

from raydense.storage import Place
from raydense.training.fit import _say_gain, _say_of_offload, _say_of_patience, _train
from raydense.training.generations import Generations
from raydense.training.loop import Job
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


@pytest.mark.parametrize(("offload", "gpu", "said"), [(True, False, True), (True, True, False), (False, False, False)])
def test_offload_where_there_is_no_gpu_is_said(offload: bool, gpu: bool, said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {key: key for key in ("model", "corpus", "queries", "examples", "output")}
    _say_of_offload(TrainSettings(objective="retriever", **folders, engine={"offload": offload}), gpu)
    assert ("engine.offload has no effect" in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (
            {"start": 0.4, "best": 0.31, "best_step": 1_000},
            "mrr@10 fell from 0.4000 before the first step to 0.3100 after step 1,000, which",
        ),
        ({"start": 0.4, "best": 0.4, "best_step": 1_000}, "mrr@10 0.4000 after step 1,000, 0.4000 before the first\n"),
        ({"start": 0.4, "best": 0.4, "best_step": 0}, "mrr@10 was never above the 0.4000 before the first step"),
        ({"start": None, "best": 0.4, "best_step": 1_000}, None),
    ],
)
def test_a_dev_metric_that_ends_below_its_start_is_said(
    measured: dict[str, Any], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """As only `dev.keep last` ends."""
    _say_gain({"by": "mrr@10", **measured})
    printed = capsys.readouterr().err
    assert said in printed if said else not printed


def test_the_summary_is_of_all_workers_that_were_started_one_after_another(tmp_path: Path) -> None:
    """In mode sync one run of them for each period: the seconds and the tokens of all, and the memory of the one that took most."""
    folders = {key: key for key in ("model", "corpus", "queries", "examples", "output")}
    settings: Any = TrainSettings(objective="retriever", **folders, refresh={"every": 5})
    generations = Generations(Place.of(tmp_path), 15, 5)
    job = Job(settings, "model", Place.of(tmp_path), 15, {}, generations, 15, {})
    one = {"steps": 5, "seconds": 2.0, "waited": 0.5, "input_wait": 0.25, "tokens": 100, "start": None, "best": None, "best_step": 15}
    memory, until = {5: 3.0, 10: 7.5, 15: 4.0}, []

    class Started:
        def run(self, job: Job, *_: Any) -> dict[str, Any]:
            until.append(job.until)
            return {**one, "step": job.until, "memory": memory[job.until], "ended": job.until == job.steps}

        def make_open(self) -> float:
            return 10.0

    started: Any = Started()
    found = _train(job, False, 0, started, started)
    assert until == [5, 10, 15]
    assert {name: found[name] for name in ("steps", "seconds", "waited", "input_wait", "tokens")} == {
        "steps": 15,
        "seconds": 6.0,
        "waited": 31.5,
        "input_wait": 0.75,
        "tokens": 300,
    }
    assert found["memory"] == 7.5
