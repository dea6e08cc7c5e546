"""What the driver shows and sends of a training."""

from __future__ import annotations

import errno
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import OutOfMemoryError

from raydense.errors import InputError
from raydense.runtime.progress import Progress
from raydense.storage import Place
from raydense.training import followed as followed_module
from raydense.training.ending import Ending
from raydense.training.followed import Followed
from raydense.training.generations import Generations
from raydense.training.history import USAGE, USAGE_EVENTS, History, Line
from raydense.training.loop import Job
from raydense.training.notice import ask_to_end, is_asked
from raydense.training.settings import TrainSettings
from raydense.training.status import Status, forget, start_line


def column(lines: list[Line], name: str) -> list[float]:
    return [line[name] for line in lines]


def job_of(tmp_path: Path, shared: Place) -> Job:
    settings = TrainSettings.read(
        {"objective": "retriever", "output": str(tmp_path / "out"), **dict.fromkeys(("model", "corpus", "queries", "examples"), "x")}
    )
    return Job(settings, "start", shared, 10, {}, Generations(Place.of(str(tmp_path)), 10, 10), 10, {})


def followed_of(tmp_path: Path, shared: Place, sent: list[Line]) -> Followed:
    return Followed(job_of(tmp_path, shared), sent.append, Ending(shared, 10))


def test_steps_that_are_made_again_are_neither_shown_nor_sent_before_they_are(tmp_path: Path) -> None:
    shared = Place.of(str(tmp_path)) / "shared"
    killed = History(shared, 0)
    killed.add([{"step": step, "loss": 1.0} for step in (1, 2, 3)])
    killed.close()
    sent: list[Line] = []
    followed, progress = followed_of(tmp_path, shared, sent), Progress("train", 10, "steps")
    followed.report(progress)
    assert (progress.done, progress.note, sent) == (0, "", [])

    again = History(shared, 0)
    Status(shared).start("10 steps of 32")
    again.add([{"step": 1, "loss": 2.0}])
    followed.report(progress)
    assert (progress.done, progress.note, sent) == (1, "at step 1: loss 2.0000", [{"step": 1, "loss": 2.0}])
    again.close()


def test_a_micro_batch_that_was_searched_again_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As where Ray starts workers again on a node of another kind, within the same command."""
    shared = Place.of(str(tmp_path)) / "shared"
    given = {"micro_batch": "auto", "output": str(tmp_path / "out"), **dict.fromkeys(("model", "corpus", "queries", "examples"), "x")}
    settings = TrainSettings.read({"objective": "retriever", **given})
    job = Job(settings, "start", shared, 10, {}, Generations(Place.of(str(tmp_path)), 10, 10), 10, {})
    followed, progress = Followed(job, lambda _: None, Ending(shared, 10)), Progress("train", 10, "steps")
    lines = ["micro_batch 12 of 12 texts", "micro_batch 4 of 12 texts; it was 12 on CPU with 8.0 GiB"]
    for line in lines:
        Status(shared).micro_batch(line)
        followed.report(progress)
        forget(shared)
        followed.report(progress)
    assert [line for line in capfd.readouterr().err.splitlines() if "micro_batch" in line] == [f"train: {line}" for line in lines]


def test_what_a_report_has_no_time_for_is_sent_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a driver that starts again, and has a long history to send to a slow tracker."""
    monkeypatch.setattr(followed_module, "_REPORTING_S", 0.0)
    shared, sent = Place.of(str(tmp_path)) / "shared", list[Line]()
    history = History(shared, 0)
    history.add([{"step": step, "loss": step / 10} for step in range(1, 6)])
    Status(shared).start("10 steps of 32")
    followed, progress = followed_of(tmp_path, shared, sent), Progress("train", 10, "steps")
    for step in (1, 2, 3):
        followed.report(progress)
        assert column(sent, "step") == [*range(1, step + 1)]
    history.close()
    shorter = History(shared, 4)  # the workers began again, before what is not sent yet
    shorter.add([{"step": 5, "loss": 9.0}])
    followed.send_rest()
    assert column(sent, "loss") == [0.1, 0.2, 0.3, 0.4, 9.0]
    shorter.close()


def test_what_was_measured_of_the_machines_is_sent_with_its_own_step(tmp_path: Path) -> None:
    shared, sent = Place.of(str(tmp_path)) / "shared", list[Line]()
    history, usage = History(shared, 0), History(shared, 0, USAGE, USAGE_EVENTS)
    usage.add([{"step": step, "memory": float(step)} for step in (2, 4)])
    history.add([{"step": step, "loss": 1.0} for step in range(1, 6)])
    followed_of(tmp_path, shared, sent).send_rest()
    assert [line.get("memory") for line in sent] == [None, 2.0, None, 4.0, None]
    history.close()
    usage.close()


class Workers(threading.Thread):
    """Workers at a step, which end when they are asked to."""

    def __init__(self, shared: Place) -> None:
        super().__init__(daemon=True)
        self.shared, self.saved = shared, False

    def run(self) -> None:
        Status(self.shared).start("10 steps of 32")
        while not is_asked(self.shared):
            time.sleep(0.01)
        self.saved = True


class Builder:
    """A refresh, or a disk, that fails when the workers are at a step."""

    def __init__(self, shared: Place) -> None:
        self.shared = shared

    def failed_by(self, error: BaseException) -> bool:
        return True

    def check(self) -> None:
        if start_line(self.shared):
            raise InputError("no space left on device", "refresh", "free some")


def test_workers_save_before_an_error_of_the_refresh_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the process kills them, in the middle of a step."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01000000"))
    shared = Place.of(str(tmp_path)) / "shared"
    workers, followed = Workers(shared), followed_of(tmp_path, shared, [])
    with pytest.raises(InputError, match="no space left"):
        followed._once(workers, Builder(shared), Progress("train", 10, "steps"))  # type: ignore[arg-type]
    assert workers.saved


def test_a_disk_that_fails_for_a_moment_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers outlast it for 20 minutes."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01000000"))
    shared = Place.of(str(tmp_path)) / "shared"
    workers, followed, failed = Workers(shared), followed_of(tmp_path, shared, []), list[Place]()

    def fails(where: Place) -> None:
        failed.append(where)
        ask_to_end(where)  # so that the test ends
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(followed_module, "keep_registered", fails)
    workers.outcome = lambda: {"step": 10, "ended": True}  # type: ignore[attr-defined]
    followed._once(workers, SimpleNamespace(check=lambda: None), Progress("train", 10, "steps"))  # type: ignore[arg-type]
    assert failed


@pytest.mark.parametrize("of_refresh", [False, True])
def test_a_controller_that_ray_ends_for_memory_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_refresh: bool) -> None:
    """And what it had reserved is freed, or the next one would wait for it; but not where the error is of the refresh, which would meet it again."""
    shared = Place.of(str(tmp_path)) / "shared"
    followed, freed = followed_of(tmp_path, shared, []), list[str]()
    tries = iter([OutOfMemoryError("the memory monitor"), {"step": 10, "ended": True}])

    def once(*given: Any) -> Any:
        found = next(tries)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(followed, "_once", once)
    monkeypatch.setattr(followed_module, "remove_left_groups", lambda: freed.append("groups"))
    builder: Any = SimpleNamespace(failed_by=lambda error: of_refresh)
    with pytest.raises(OutOfMemoryError) if of_refresh else nullcontext():
        assert followed.run(job_of(tmp_path, shared), False, builder, Progress("train", 10, "steps"))["ended"]
    assert freed == ["groups"] * (not of_refresh)
