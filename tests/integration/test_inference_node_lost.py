"""Encoding on a cluster of several nodes, one of which hangs, is lost or is slow, or whose head is lost: the same bytes each time."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest
from inference_world import file_bytes, make_corpus, make_retriever
from nodes import Node, Nodes, name_of, several_nodes

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
SHARDS = 16
DRIVER = """
import json, os, sys
import ray
from raydense.recipes.stage import VERBS
from raydense.runtime.session import quiet_data
machine, given = sys.argv[1], json.loads(sys.argv[2])
if machine:
    ray.init(os.environ["RAY_ADDRESS"], _temp_dir=machine, log_to_driver=False, logging_level="WARNING")
    quiet_data()
VERBS["encode"].run(VERBS["encode"].settings(**given))
"""
# Losses are noticed sooner than by default, and the head is waited for as long as in KubeRay.
RAY = {"RAY_health_check_period_ms": "500", "RAY_health_check_initial_delay_ms": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


@dataclass
class Encoding:
    """The command at work on the cluster: an actor on each of two nodes, its driver on the head or on `machine`."""

    output: Path
    driver: Popen[bytes]
    log: Path

    def committed(self) -> dict[str, tuple[int, int]]:
        """The files that have a record; one that is written again has another inode and time."""
        records = (self.output / ".work" / "commits").glob("embeddings-*.json")
        files = [self.output / json.loads(record.read_text())["path"] for record in records]
        return {file.name: ((stat := file.stat()).st_ino, stat.st_mtime_ns) for file in files}

    def until(self, found: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not found():
            assert self.driver.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)

    def ends(self) -> dict[str, bytes]:
        assert self.driver.wait(300) == 0, self.log.read_text()
        return file_bytes(self.output)


@dataclass
class World:
    """A cluster of two nodes that keeps its state in a folder, and what is encoded on it."""

    cluster: Nodes
    root: Path

    def encode(self, name: str, machine: Node | None = None) -> Encoding:
        inputs = {"model": str(self.root / "model"), "corpus": str(self.root / "corpus")}
        given = {"output": str(self.root / name), "dtype": "float32", "concurrency": [2, 2], "cpus_per_actor": 1.5, **inputs}
        words = ["-c", DRIVER, str(machine.temp_dir) if machine else "", json.dumps(given)]
        log = self.root / f"{name}.log"
        return Encoding(self.root / name, self.cluster.driver(*words, log=log, cwd=ROOT), log)

    def at_work(self, name: str, machine: Node | None = None, done: int = 2) -> Encoding:
        """An encoding that has committed some files, with an actor on each node."""
        encoding = self.encode(name, machine)
        encoding.until(lambda: len(encoding.committed()) >= done and all(map(encodes, self.cluster.nodes)))
        return encoding

    def computed(self) -> Counter[int]:
        """How often each shard was computed on any node so far: an actor writes a line of it into its log."""
        logs = self.cluster.folder.glob("*/session_2*/logs/worker-*.err")
        return Counter(int(shard) for log in logs for shard in re.findall(r", encode: part (\d+)", log.read_text()))


def encodes(node: Node) -> bool:
    return any("MapWorker" in name_of(process) for process in node.workers())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("nodes")
    make_retriever(root / "model")
    make_corpus(root / "corpus", SHARDS * 250, 250)
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": f"{folder}/gcs"}
        with several_nodes(Path(folder), 2, **RAY, **stored) as cluster:
            yield World(cluster, root)


@pytest.fixture(scope="module")
def quiet(world: World) -> dict[str, bytes]:
    # By a driver on a node: Ray Data keeps two small actors of all jobs where the cluster's first driver ran.
    return world.encode("quiet", world.cluster.nodes[0]).ends()


def test_a_node_hangs_and_is_lost(world: World, quiet: dict[str, bytes]) -> None:
    """While it hangs the other one continues; it wakes up, is lost, and a third one joins."""
    victim = world.cluster.nodes[1]
    encoding = world.at_work("lost")
    victim.freeze()
    before = len(encoding.committed())
    encoding.until(lambda: len(encoding.committed()) > before)
    victim.thaw()
    victim.kill()
    world.cluster.nodes.remove(victim)
    assert len(encoding.committed()) < SHARDS
    world.cluster.add()
    assert encoding.ends() == quiet


def test_a_slow_node_is_waited_for(world: World, quiet: dict[str, bytes]) -> None:
    """What a slow node has at hand is not done by another too: each file is computed once."""
    before = world.computed()
    encoding = world.at_work("slow", done=SHARDS // 2)
    with world.cluster.nodes[1].slow():
        assert encoding.ends() == quiet
    assert world.computed() - before == Counter(range(SHARDS))


def test_the_head_is_lost_and_comes_back_from_its_storage(world: World, quiet: dict[str, bytes]) -> None:
    """The driver is on a node: it and the actors wait for the head, and continue."""
    encoding = world.at_work("head", world.cluster.nodes[0])
    world.cluster.head.kill()
    assert len(encoding.committed()) < SHARDS
    world.cluster.start_head()
    assert encoding.ends() == quiet
    assert [node.process.poll() for node in world.cluster.nodes] == [None, None]


def test_the_head_is_lost_with_its_storage(world: World, quiet: dict[str, bytes]) -> None:
    """All of the cluster ends, with the driver on the head. The same command on a new one continues from what was committed."""
    cluster, encoding = world.cluster, world.at_work("again")
    cluster.head.kill()
    encoding.driver.kill()
    encoding.driver.wait()
    shutil.rmtree(cluster.folder / "gcs")
    kept = encoding.committed()
    assert 0 < len(kept) < SHARDS
    assert not (encoding.output / "manifest.json").exists()
    cluster.start_head()
    for node in cluster.nodes:
        assert node.process.wait(300) != 0
    cluster.nodes.clear()
    for _ in range(2):
        cluster.add()
    again = world.encode("again")
    assert again.ends() == quiet
    assert kept.items() <= {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in again.output.glob("*.arrow")}.items()
