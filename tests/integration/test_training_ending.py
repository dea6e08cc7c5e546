"""SIGTERM, Ctrl-C and a closed terminal in the middle of a training: it saves the step that it is in, and the same command continues from there."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from killing import ctrl_c_once
from training_data import TrainingData, make_training_data
from warm_worker import own_ray_environment

from raydense.cli.work import verb_work
from raydense.forecast import Forecast
from raydense.recipes.stage import Stage
from raydense.recipes.unfinished import left, progress
from raydense.refresh.train import train
from raydense.runtime.ray_internals import actors_of
from raydense.storage import Artifact, Place
from raydense.training.fit import fit
from raydense.training.history import Follower, read_history
from raydense.training.registered import newest_state
from raydense.training.settings import TrainSettings

ROOT = Path(__file__).parents[2]
STEPS = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("data"))


def settings_of(data: TrainingData, output: Path, **changes: object) -> TrainSettings:
    """No checkpoint is due before the end."""
    return data.settings(output, max_steps=STEPS, checkpoint_every=10_000, log_every=1, dropout=0.1, **changes)


@pytest.fixture(scope="module")
def whole(data: TrainingData, ray_cluster: None) -> Artifact:
    return train(settings_of(data, data.root / "undisturbed"))


def digests(artifact: Artifact) -> list[tuple[str, str]]:
    return [(f.path, f.sha256) for f in artifact.files]


def begin(
    settings: TrainSettings, environment: dict[str, str], program: tuple[str, str] = ("-m", "raydense"), **more: Any
) -> subprocess.Popen[str]:
    """The command line of the training."""
    command = [sys.executable, *program, *verb_work("train", settings).words]
    return forked.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, **more)


def until_step(process: subprocess.Popen[str], output: Path, least: int) -> None:
    follower, step = Follower(Place.of(output / ".work/history.jsonl")), 0
    while step < least:
        assert process.poll() is None, process.communicate()
        step = max([step, *(line["step"] for line in follower.new_lines())])
        time.sleep(0.02)


def saved_step(wanted: TrainSettings, printed: str, number: signal.Signals) -> int:
    """That from which a training that has ended continues, as its line, its history and `plan` have it."""
    assert "train: saves after this step, and ends" in printed
    (step,) = re.findall(rf"train: ended by {number.name}; the same command continues from step (\d+) of {STEPS}\n", printed)
    output = Path(wanted.output)
    done = [json.loads(line)["step"] for line in (output / ".work/history.jsonl").read_text().splitlines()]
    assert done == list(range(1, int(step) + 1)), "no step was done after the one that it continues from"
    assert 10 <= int(step) < STEPS
    assert not (output / "manifest.json").exists()
    stage = Stage("retriever", "train", wanted, ())
    assert progress(stage) == f"step {step} is saved"
    assert left(stage, Forecast(work={"steps": float(STEPS)})).work == {"steps": pytest.approx(STEPS - int(step))}
    return int(step)


def continued(wanted: TrainSettings, step: int, capfd: pytest.CaptureFixture[str]) -> Artifact:
    capfd.readouterr()
    again = train(wanted)
    assert f"train: continues after {step} of {STEPS} steps" in capfd.readouterr().err
    assert [line["step"] for line in read_history(again.path / "history.jsonl")] == list(range(1, STEPS + 1))
    return again


@pytest.mark.parametrize(("number", "code", "workers"), [(signal.SIGTERM, 143, 2), (signal.SIGINT, 130, 1)], ids=["two workers", "int"])
def test_no_step_is_lost(
    data: TrainingData,
    tmp_path: Path,
    joining: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
    workers: int,
) -> None:
    wanted = settings_of(data, tmp_path / "ended", workers=workers)
    with begin(wanted, joining) as process:
        until_step(process, tmp_path / "ended", 10)
        process.send_signal(number)
        _, printed = process.communicate()
    assert process.returncode == code, printed
    step = saved_step(wanted, printed, number)
    if workers == 2:  # they draw another dropout than `whole`; one worker continues in the next test
        continued(wanted, step, capfd)


def test_no_step_is_lost_where_the_signal_goes_to_the_process_group(
    data: TrainingData, whole: Artifact, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As that of `timeout`: the Ray that the command has started does not hear it."""
    wanted = settings_of(data, tmp_path / "ended")
    with begin(wanted, own_ray_environment(), start_new_session=True) as process:
        until_step(process, tmp_path / "ended", 10)
        os.killpg(process.pid, signal.SIGTERM)
        _, printed = process.communicate()
    assert process.returncode == 143, printed
    again = continued(wanted, saved_step(wanted, printed, signal.SIGTERM), capfd)
    assert digests(again) == digests(whole)
    assert again.fingerprint == whole.fingerprint


@pytest.mark.long
def test_no_step_is_lost_where_the_terminal_is_closed(data: TrainingData, tmp_path: Path) -> None:
    """As by a connection that breaks: from then on nothing can be printed, either."""
    wanted = settings_of(data, tmp_path / "ended")
    command = [sys.executable, "-m", "raydense", *verb_work("train", wanted).words]
    process, terminal = pty.fork()
    if process == 0:
        try:
            os.chdir(ROOT)
            os.execve(sys.executable, command, own_ray_environment())
        finally:
            os._exit(127)
    follower, step = Follower(Place.of(tmp_path / "ended/.work/history.jsonl")), 0
    while step < 10:
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        if select.select([terminal], [], [], 0.001)[0]:
            os.read(terminal, 1 << 16)
        step = max([step, *(line["step"] for line in follower.new_lines())])
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    done = [json.loads(line)["step"] for line in (tmp_path / "ended/.work/history.jsonl").read_text().splitlines()]
    assert progress(Stage("retriever", "train", wanted, ())) == f"step {done[-1]} is saved"
    assert 10 <= done[-1] < STEPS


def test_a_program_that_goes_on_after_ctrl_c_does_not_train_twice(data: TrainingData, whole: Artifact, tmp_path: Path) -> None:
    wanted = settings_of(data, tmp_path / "ended")
    with pytest.raises(KeyboardInterrupt), ctrl_c_once((tmp_path / "ended/.work/run").exists):
        train(wanted)
    again = train(wanted)
    assert [thread for thread in threading.enumerate() if thread.name == "fit"] == []
    assert [line["step"] for line in read_history(again.path / "history.jsonl")] == list(range(1, STEPS + 1))
    assert digests(again) == digests(whole)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_workers_that_wait_for_new_negatives_end_at_once(
    data: TrainingData, tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int, ray_cluster: None
) -> None:
    """They have saved the step before. The new negatives take as long as the test, which is longer than the command waits for its workers."""
    every, output, ended = 4, tmp_path / "ended", threading.Event()
    changes = {"max_steps": 3 * every, "refresh": {"every": every, "mode": "async", "depth": 20, "negatives": 3}}
    wanted = data.settings(output, checkpoint_every=10_000, log_every=1, workers=workers, **changes)

    def waits() -> bool:
        state = newest_state(Place.of(output) / ".work")
        return state is not None and state.step >= 2 * every

    try:
        with pytest.raises(KeyboardInterrupt), ctrl_c_once(waits):
            fit(wanted, lambda *_: ended.wait())
        assert [thread for thread in threading.enumerate() if thread.name == "fit"] == [], "the workers have ended first"
    finally:
        ended.set()
    assert f"train: ended by SIGINT; the same command continues from step {2 * every} of {3 * every}\n" in capfd.readouterr().err
    assert [line["generation"] for line in read_history(train(wanted).path / "history.jsonl")] == [0] * 2 * every + [1] * every


def test_before_the_first_step_it_ends_at_once(data: TrainingData, tmp_path: Path, joining: dict[str, str]) -> None:
    with begin(settings_of(data, tmp_path / "ended"), joining) as process:
        while not (tmp_path / "ended/.work/run").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate()
    assert process.returncode == 143, printed
    assert f"train: ended by SIGTERM; the same command continues from step 0 of {STEPS}\n" in printed


# Names the threads that there are once Ray has freed what its calls read.
_NAMES_THREADS = """
import sys, threading
import ray._private.state as ray_state
from raydense.cli import main

disconnect = ray_state.state.disconnect

def names_threads():
    print("threads:", *sorted(thread.name for thread in threading.enumerate()), file=sys.stderr)
    disconnect()

ray_state.state.disconnect = names_threads
main(sys.argv[1:])
"""


def test_no_thread_reads_what_ray_has_freed(data: TrainingData, tmp_path: Path, joining: dict[str, str]) -> None:
    """The thread that waits for the workers reads it once a second, which crashed a process that took longer to end."""
    before = {actor["ActorID"] for actor in actors_of()}
    with begin(settings_of(data, tmp_path / "ended"), joining, ("-c", _NAMES_THREADS)) as process:
        while not any(
            "TrainWorker" in one["ActorClassName"] and one["State"] == "ALIVE" for one in actors_of() if one["ActorID"] not in before
        ):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate()
    assert process.returncode == 143, printed
    (threads,) = re.findall("threads: (.*)\n", printed)
    assert "MainThread" in threads
    assert "fit" not in threads.split()
