"""kill -9 of the driver of a training in its middle: the second run continues, and its model is the undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import forked
import pytest
from training_data import TrainingData, make_training_data

from raydense.refresh.train import train
from raydense.storage import Place
from raydense.training.history import Follower
from raydense.training.registered import newest_state
from raydense.training.settings import TrainSettings

ROOT = Path(__file__).parents[2]
RUN = "import sys, json; from raydense.training.settings import TrainSettings; from raydense.refresh.train import train; train(TrainSettings(**json.loads(sys.argv[1])))"
STEPS = 30


def settings_of(data: TrainingData, output: Path) -> TrainSettings:
    dev = {"dev": {"qrels": str(data.root / "sample/qrels/dev"), "passages": 60, "every": 6}}
    return data.settings(output, max_steps=STEPS, checkpoint_every=6, log_every=1, dropout=0.1, engine={"name": "deepspeed"}, **dev)


def test_killed_in_the_middle_and_run_again(tmp_path: Path, joining: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    data = make_training_data(tmp_path)
    whole, wanted = train(settings_of(data, tmp_path / "undisturbed")), settings_of(data, tmp_path / "killed")
    command = [sys.executable, "-c", RUN, wanted.model_dump_json(exclude_unset=True)]
    process = forked.Popen(command, cwd=ROOT, env=joining)
    work = Place.of(tmp_path / "killed/.work")
    follower, step = Follower(work / "history.jsonl"), 0
    while step < 14 or not (state := newest_state(work)) or state.step < 12:
        assert process.poll() is None
        step = max([step, *(line["step"] for line in follower.new_lines())])
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert step < STEPS
    assert not (tmp_path / "killed/manifest.json").exists()

    capfd.readouterr()
    again = train(wanted)
    printed = capfd.readouterr().err
    continued = [line for line in printed.splitlines() if "continues after" in line]
    assert continued, printed
    assert int(continued[0].split("continues after ")[1].split()[0]) >= state.step
    assert [(f.path, f.sha256) for f in again.files] == [(f.path, f.sha256) for f in whole.files]
    assert again.fingerprint == whole.fingerprint
    steps = [json.loads(line)["step"] for line in (again.path / "history.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))
    assert again.summary["best_step"] == whole.summary["best_step"]
