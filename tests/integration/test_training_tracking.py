"""Trackers of other makers: the real MLflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training_data import make_training_data

from raydense.errors import InputError
from raydense.training import followed
from raydense.training import tracking as tracking_module
from raydense.training.fit import fit
from raydense.training.settings import TrainSettings
from raydense.training.tracking import tracking


def settings(**changes: Any) -> TrainSettings:
    values = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "runs/first"}
    return TrainSettings(**{**values, **changes})


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with a store of files in `tmp_path`."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow: Any = import_module("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # what it stores in by default needs a database
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


def only_run(client: Any) -> Any:
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return run


def test_mlflow_gets_each_line_and_the_settings(client: Any) -> None:
    with tracking(settings(track="mlflow", lr=0.5)) as send:
        send({"step": 3, "loss": 0.5, "lr": 0.25})
        send({"step": 7, "loss": 0.25, "mrr@10": 0.75})
    run = only_run(client)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert (run.data.params["lr"], run.data.params["engine.name"]) == ("0.5", "deepspeed")
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")] == [(3, 0.5), (7, 0.25)]
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "mrr_at_10")] == [(7, 0.75)]


def test_a_training_that_fails_ends_its_run_in_mlflow(client: Any) -> None:
    with pytest.raises(InputError, match="the loss is nan"), tracking(settings(track="mlflow")):
        raise InputError("the loss is nan", "train")
    assert only_run(client).info.status == "FAILED"
    with tracking(settings(track="mlflow", output="runs/second")):
        pass


@pytest.mark.parametrize(
    ("again_s", "away", "lacking"),
    [
        (0.0, {2: 1}, []),  # tried again with the next line
        (300.0, {2: 1}, []),  # tried again at the end, with those that waited meanwhile
        (0.0, {3: 99}, [3]),  # never taken: those after it are
        (0.0, {2: 2, 3: 1}, []),  # away for longer than two tries
        (300.0, {4: 1}, []),
        (300.0, {3: 99}, [3]),
    ],
)
def test_a_tracker_that_is_away_does_not_end_the_training(
    again_s: float,
    away: dict[int, int],
    lacking: list[int],
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its server is a closed port for the first tries of a step."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(tracking_module, "_AGAIN_S", again_s)
    mlflow: Any = import_module("mlflow")
    real, tries = mlflow.log_metrics, Counter()

    def log_metrics(values: Any, step: int) -> None:
        tries[step] += 1
        if tries[step] <= away.get(step, 0):
            mlflow.MlflowClient("http://127.0.0.1:9").log_metric("run", "loss", 1.0)
        real(values, step=step)

    monkeypatch.setattr(mlflow, "log_metrics", log_metrics)
    with tracking(settings(track="mlflow")) as send:
        for step in range(1, 5):
            send({"step": step, "loss": 1.0, "mrr@10 of q&a, new": 0.5})
    run = only_run(client)
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [step for step in range(1, 5) if step not in lacking]
    assert "mrr_at_10 of q_a_ new" in run.data.metrics
    said = capsys.readouterr().err
    assert "mlflow did not take step" in said
    assert ("mlflow lacks 1 of 4 lines; history.jsonl has all" in said) == bool(lacking)


def test_what_waited_for_a_tracker_does_not_hold_up_the_training(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a call has is over after its first line."""
    monkeypatch.setattr(tracking_module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(tracking_module, "_AT_ONCE_S", 0.0)
    mlflow: Any = import_module("mlflow")
    taken: list[int] = []
    with tracking(settings(track="mlflow")) as send:
        run = mlflow.active_run().info.run_id
        with monkeypatch.context() as away:
            away.setattr(mlflow, "log_metrics", lambda values, step: mlflow.get_run("of no server"))
            send({"step": 1, "loss": 1.0})
        for step in (2, 3):
            send({"step": step, "loss": 1.0})
            taken.append(len(client.get_metric_history(run, "loss")))
    assert taken == [1, 2]
    assert [m.step for m in client.get_metric_history(run, "loss")] == [1, 2, 3]


@pytest.mark.usefixtures("ray_cluster")
def test_a_slow_tracker_has_every_step_at_the_end(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "_REPORTING_S", 0.0)  # a line a report
    fit(make_training_data(tmp_path).settings(tmp_path / "model", track="mlflow", max_steps=40, log_every=2))
    run = only_run(client)
    assert run.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == list(range(1, 41))
    assert [m.step for m in client.get_metric_history(run.info.run_id, "memory")] == list(range(2, 41, 2))


def test_a_run_that_cannot_begin_is_one_line(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    import_module("mlflow").set_tracking_uri("http://127.0.0.1:9")
    with pytest.raises(InputError, match="track: mlflow could not begin a run"), tracking(settings(track="mlflow")):
        raise AssertionError("the block was entered")


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_a_tracker_that_is_not_installed() -> None:
    with pytest.raises(InputError, match="wandb is not installed; pip install wandb"), tracking(settings(track="wandb")):
        raise AssertionError("the block was entered")


def test_without_a_tracker_lines_go_nowhere(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_module, "import_module", lambda name: pytest.fail(f"{name} is used"))
    with tracking(settings()) as send:
        send({"step": 1, "loss": 0.5})
    assert client.search_runs([e.experiment_id for e in client.search_experiments()]) == []
