"""A training on two machines into a bucket: a machine is lost, then the driver, and another one continues. The model is that of one into a folder."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from nodes import Nodes, several_nodes
from training_data import TrainingData, make_training_data

from raydense.refresh.train import train
from raydense.storage import Artifact, Place
from raydense.training.history import HISTORY, Follower
from tests.s3_server import BUCKET, environment

ROOT = Path(__file__).parents[2]
OUTPUT = f"s3://{BUCKET}/model"
EVERY, STEPS = 8, 16
RUN = """
import json, sys
from raydense.refresh.train import train
from raydense.training.settings import TrainSettings
train(TrainSettings(**json.loads(sys.argv[1])))
"""
RAY = {"RAY_health_check_period_ms": "500", "RAY_health_check_initial_delay_ms": "0"}
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


def given(data: TrainingData, output: Place) -> dict[str, object]:
    refresh = {"refresh": {"every": EVERY, "depth": 20, "negatives": 3}}
    settings = data.settings(output, max_steps=STEPS, workers=2, checkpoint_every=2, log_every=1, dropout=0.1, **refresh)
    return settings.model_dump(exclude_unset=True, mode="json")


def until(step: int, driver: subprocess.Popen[bytes], log: Path) -> None:
    """Until so many steps are done, as another machine sees it."""
    follower, done, end = Follower(Place.of(f"{OUTPUT}/.work/{HISTORY}")), 0, time.monotonic() + 300
    while done < step:
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
        done = max([done, *(line["step"] for line in follower.new_lines())])


def start(cluster: Nodes, data: TrainingData, cache: Path, log: Path) -> subprocess.Popen[bytes]:
    cluster.environment["RAYDENSE_CACHE"] = str(cache)  # what makes it a driver of another machine
    return cluster.driver("-c", RUN, json.dumps(given(data, OUTPUT)), log=log, cwd=ROOT)


def test_a_node_is_lost_and_the_driver(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, log = make_training_data(tmp_path), tmp_path / "log"
    quiet = train(type(data.settings("x"))(**given(data, tmp_path / "quiet")))
    there = environment(port, tmp_path / "here")
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    with (
        tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        several_nodes(Path(folder), 2, **RAY, **there) as cluster,
    ):
        driver = start(cluster, data, tmp_path / "first", log)
        until(3, driver, log)
        cluster.nodes.pop().kill()
        cluster.add()
        until(EVERY + 3, driver, log)
        driver.kill()
        driver.wait()
        assert not Place.of(f"{OUTPUT}/manifest.json").exists()
        assert Artifact.open(f"{OUTPUT}/refresh/001", "examples").rows
        assert start(cluster, data, tmp_path / "second", log).wait(300) == 0, log.read_text()
    made = Artifact.open(OUTPUT, "model")
    assert [(file.path, file.sha256) for file in made.files] == [(file.path, file.sha256) for file in quiet.files]
    assert made.fingerprint == quiet.fingerprint
    assert [one["new"] for one in made.summary["generations"]] == [one["new"] for one in quiet.summary["generations"]]
    assert not [name for name in Place.of(OUTPUT).files() if name.startswith(".work/")]
