"""A whole node lost, or hanging, on a cluster of several: raylet, workers and objects at once. The stage goes on by itself, with the same bytes."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from inference_world import file_bytes, make_corpus, make_retriever
from nodes import Node, Nodes, name_of, several_nodes

ROOT = Path(__file__).parents[2]
SHARDS = 24
DRIVER = """
import json, sys
from raydense.pipeline import VERBS
for verb, given in json.loads(sys.argv[1]):
    VERBS[verb].run(VERBS[verb].settings(**given))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with (
        tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        several_nodes(Path(folder), 2, RAY_health_check_period_ms="500", RAY_health_check_initial_delay_ms="0") as cluster,
    ):
        yield cluster


def at_work(cluster: Nodes, kind: str) -> list[Node]:
    """The nodes that have a worker of this kind."""
    return [node for node in cluster.nodes if any(kind in name_of(process) for process in node.workers())]


def wait(found: Callable[[], bool], driver: Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 300
    while not found():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.01)


def test_encoding_where_one_node_hangs_and_the_other_is_lost(cluster: Nodes, tmp_path: Path) -> None:
    """One of two nodes hangs while the other encodes; it wakes up, and the other one is lost."""
    make_retriever(tmp_path / "model")
    make_corpus(tmp_path / "corpus", 6_000, 6_000 // SHARDS)

    def encode(name: str) -> Popen[bytes]:
        inputs = {"model": str(tmp_path / "model"), "corpus": str(tmp_path / "corpus")}
        given = {"output": str(tmp_path / name), "dtype": "float32", "concurrency": [2, 2], **inputs}
        return cluster.driver("-c", DRIVER, json.dumps([["encode", given]]), log=tmp_path / f"{name}.log", cwd=ROOT)

    def committed(name: str) -> int:
        return len(list((tmp_path / name / ".work" / "commits").glob("embeddings-*")))

    assert encode("quiet").wait(300) == 0, (tmp_path / "quiet.log").read_text()
    driver, log = encode("lost"), tmp_path / "lost.log"
    wait(lambda: committed("lost") > 0 and len(at_work(cluster, "MapWorker")) == 2, driver, log)
    slow, gone = cluster.nodes
    slow.freeze()
    before = committed("lost")
    wait(lambda: committed("lost") > before + 2, driver, log)
    slow.thaw()
    gone.kill()
    assert committed("lost") < SHARDS
    assert driver.wait(300) == 0, log.read_text()
    assert file_bytes(tmp_path / "lost") == file_bytes(tmp_path / "quiet")
