"""Machines that share less than they should: a node without the folder of an output, and one that is no node. A command ends with a line there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Nodes, several_nodes
from training_data import TrainingData, make_training_data

from raydense.cli.work import verb_work
from raydense.models.tiny import make_tiny_encoder, many_words
from raydense.storage import read_manifest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("unshare") or subprocess.call(["unshare", "--mount", "true"]) != 0, reason="needs to mount"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def model(data: TrainingData) -> Path:
    make_tiny_encoder(many_words(), data.root / "encoder", seed=1)
    return data.root / "encoder"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def cluster(own: Path) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as folder, several_nodes(Path(folder), 0) as cluster:
        cluster.add(own)
        yield cluster


def test_a_training_is_refused_before_its_first_step(cluster: Nodes, data: TrainingData, model: Path, own: Path, tmp_path: Path) -> None:
    settings, log = data.settings(own / "model", model=str(model), max_steps=4), tmp_path / "log"
    driver = cluster.driver("-m", "raydense", *verb_work("train", settings).words, log=log, cwd=ROOT)
    assert driver.wait(240) == 2, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert last.startswith(f"raydense: {own / 'model'}: is another folder on the node "), last
    assert "Traceback" not in log.read_text()
    assert not (own / "model/.work/history.jsonl").exists()


def test_vectors_that_do_not_arrive_are_missed(cluster: Nodes, data: TrainingData, model: Path, own: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["encode", "--model", str(model), "--corpus", str(data.root / "sample/corpus"), "--output", str(own / "vectors")]
    driver = cluster.driver("-m", "raydense", *words, log=log, cwd=ROOT)
    assert driver.wait(240) == 2, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert "files that the workers wrote, 0 are there: a node of the cluster writes to a folder of its own" in last, last
    assert read_manifest(own / "vectors") is None


def test_a_machine_that_is_no_node(cluster: Nodes, data: TrainingData, model: Path, tmp_path: Path) -> None:
    """It reaches the head's port, and runs none of the cluster's processes."""
    words = ["encode", "--model", str(model), "--corpus", str(data.root / "sample/corpus"), "--output", str(tmp_path / "vectors")]
    quick = {"RAY_gcs_server_request_timeout_seconds": "2"}  # so long Ray looks for a node on this machine
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "env", *(f"{key}={value}" for key, value in quick.items())]
    command = [*elsewhere, sys.executable, "-m", "raydense", *words, "--address", cluster.address]
    done = subprocess.run(command, cwd=ROOT, env=cluster.environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"raydense: {cluster.address}: a Ray cluster answers, and this machine is no node of it; "
    ), done.stderr
