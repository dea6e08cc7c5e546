"""A cluster that may grow to three nodes with a GPU each, as Ray counts them: pools of actors and a training that ask for more than it may have."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training_data import make_training_data

from cluster import local
from raydense.cli.work import verb_work

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
POOL = """
import sys, time
import pyarrow as pa
import ray
from raydense.inference.pipeline import run
from raydense.inference.settings import EncodeSettings
from raydense.runtime.session import ensure_ray

class Computes:
    def __init__(self, layout):
        pass

    def __call__(self, table):
        time.sleep(SECONDS)
        return table.append_column("node", pa.array([ray.get_runtime_context().get_node_id()]))

def tokenise(table):
    return table

MOST, PARTS, SECONDS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
ensure_ray()
while sum(node["Alive"] for node in ray.nodes()) > 1:
    time.sleep(0.2)
spread = EncodeSettings(model="m", corpus="c", output="o", gpus_per_actor=1, concurrency=(1, MOST))
records = list(run("encode", spread, [{"part": part} for part in range(PARTS)], tokenise, Computes))
assert sorted(record["part"] for record in records) == list(range(PARTS))
print(f"nodes: {len({record['node'] for record in records})}")
"""


@pytest.fixture(scope="module")
def joining() -> Iterator[dict[str, str]]:
    """The environment of a process that joins the cluster, whose nodes end after five idle seconds."""
    plain = local.autoscaling

    def with_gpus(*given: Any) -> dict[str, Any]:
        config = plain(*given)
        config["available_node_types"]["worker"]["resources"]["GPU"] = 1
        return config

    with tempfile.TemporaryDirectory(prefix="raydense-", ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "autoscaling", with_gpus)
        with local.local_cluster(Path(folder), workers=3, cpus=1, memory=1 << 30, idle_s=5) as (_, _, address, access):
            yield os.environ | access | {"RAY_ADDRESS": address}


def ran(joining: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=joining, capture_output=True, text=True, timeout=400)


def test_a_pool_asks_at_once_for_all_that_it_may_have_and_ends_without_those_that_no_node_comes_for(joining: dict[str, str]) -> None:
    done = ran(joining, "-c", POOL, "5", "40", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "nodes: 3"
    assert "no more nodes come" not in done.stderr


def test_a_pool_of_any_size_says_that_what_is_asked_for_is_refused(joining: dict[str, str]) -> None:
    """With two nodes up Ray Data asks for four, and the third does not come."""
    done = ran(joining, "-c", POOL, "0", "60", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "nodes: 2"
    (said,) = [line for line in done.stderr.splitlines() if "no more nodes come" in line]
    assert said.startswith("encode: has 2 of up to 60 actors, and no more nodes come: Ray asks for 4 GPU")


def test_a_training_that_the_cluster_may_never_hold_is_refused(joining: dict[str, str], tmp_path: Path) -> None:
    data = make_training_data(tmp_path)
    given = data.settings(tmp_path / "model", workers=4, gpus_per_worker=1)
    done = ran(joining, "-m", "raydense", *verb_work("train", given).words)
    assert done.returncode == 2, done.stderr
    assert "train: waits for CPUs, GPUs or memory" in done.stderr
    assert "its autoscaler adds no node for 4 x 1 CPU with 1 GPU" in done.stderr
    assert (
        "workers: the cluster's autoscaler has no nodes for 4 workers, each with 1 CPU and 1 GPU, and no other work holds any"
        in done.stderr
    )
