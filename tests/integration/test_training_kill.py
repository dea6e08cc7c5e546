"""kill -9 of the whole training, driver and all, in its middle: the second run continues, and its model is the undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from training_data import TrainingData, make_training_data

from raydense.storage.artifact import Artifact
from raydense.training.history import Follower

ROOT = Path(__file__).parents[2]
RUN = "import sys, json; from raydense.training.settings import TrainSettings; from raydense.training.train import train; train(TrainSettings(**json.loads(sys.argv[1])))"
STEPS = 60


def start(data: TrainingData, output: Path) -> subprocess.Popen[str]:
    dev = {"dev_qrels": str(data.root / "sample/qrels/dev"), "dev_passages": 60, "dev_every": 15}
    settings = data.settings(output, max_steps=STEPS, checkpoint_every=10, log_every=1, dropout=0.1, engine="deepspeed", **dev)
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, settings.model_dump_json(exclude_unset=True)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def test_killed_in_the_middle_and_run_again(tmp_path: Path) -> None:
    data = make_training_data(tmp_path)
    finish(start(data, tmp_path / "undisturbed"))

    process = start(data, tmp_path / "killed")
    follower, step = Follower(tmp_path / "killed/.work/history.jsonl"), 0
    while step < 33:
        assert process.poll() is None, process.communicate()[1]
        step = max([step, *(line["step"] for line in follower.new_lines())])
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert step < STEPS
    assert not (tmp_path / "killed/manifest.json").exists()

    said = finish(start(data, tmp_path / "killed"))
    continued = [line for line in said.splitlines() if "continues after" in line]
    assert continued, said
    assert int(continued[0].split("continues after ")[1].split()[0]) >= 10
    whole, again = Artifact.open(tmp_path / "undisturbed"), Artifact.open(tmp_path / "killed")
    assert [(f.path, f.sha256) for f in again.files] == [(f.path, f.sha256) for f in whole.files]
    assert again.fingerprint == whole.fingerprint
    steps = [json.loads(line)["step"] for line in (again.path / "history.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))
    assert again.summary["best_step"] == whole.summary["best_step"]
