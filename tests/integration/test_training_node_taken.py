"""A node of a training that is going to be taken away: its workers save the step that they are in, and go on elsewhere."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path

import pytest
from nodes import several_nodes
from training_data import make_training_data

from raydense.cli.work import verb_work
from raydense.storage import Place
from raydense.training.history import Follower

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
STEPS = 300
# What a cloud, or an autoscaler, does before it takes a machine: `ray drain-node`, of a node that has a worker.
DRAIN = """
import os, time
import ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
from raydense.runtime.ray_internals import actors_of
ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
node = min(a["Address"]["NodeID"] for a in actors_of() if a["ActorClassName"] == "RayTrainWorker" and a["State"] == "ALIVE")
reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
print(GcsClient(address=os.environ["RAY_ADDRESS"]).drain_node(node, reason, "taken", int(1000 * (time.time() + 600))))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_no_step_is_lost(tmp_path: Path, workers: int) -> None:
    """There is one node more than workers, each of which takes a node."""
    data = make_training_data(tmp_path)
    given = data.settings(tmp_path / "model", max_steps=STEPS, checkpoint_every=10_000, log_every=1, cpus_per_worker=2, workers=workers)
    log, output = tmp_path / "log", tmp_path / "model"
    settings = {"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.2"}
    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as folder,
        several_nodes(Path(folder), 1 + workers, cpus=2, **settings) as cluster,
    ):
        driver = cluster.driver("-m", "raydense", *verb_work("train", given).words, log=log, cwd=ROOT)
        follower, seen = Follower(Place.of(output / ".work/history.jsonl")), [0]
        while seen[-1] < 20:
            assert driver.poll() is None, log.read_text()
            seen += [line["step"] for line in follower.new_lines()]
            time.sleep(0.02)
        drained = tmp_path / "drained"
        drain = cluster.driver("-c", DRAIN, log=drained, cwd=ROOT)
        while seen[-1] < STEPS and driver.poll() is None:
            assert not drain.poll(), drained.read_text()
            seen += [line["step"] for line in follower.new_lines()]
            time.sleep(0.02)
        assert driver.wait(240) == 0, log.read_text()
    (at,) = re.findall(r"train: a node of its workers is going to be taken away; it continues from step (\d+)\n", log.read_text())
    assert 20 <= int(at) < STEPS
    assert "workers were lost" not in log.read_text()
    assert seen == list(range(len(seen))), "a step that is done again is seen again"
    steps = [json.loads(line)["step"] for line in (output / "history.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))
