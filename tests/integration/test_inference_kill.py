"""Encoding and generating killed in the middle, driver or actor: nothing is lost, the artifact is the undisturbed one.

Nothing is computed twice but what an actor has in hand when it is killed: it may have committed that already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import pytest

from raydense.inference.encode import encode
from raydense.inference.generate import generate
from raydense.inference.settings import EncodeSettings, GenerateSettings
from raydense.models.tiny import make_tiny_generator
from raydense.storage import Artifact
from tests.inference_world import WORDS, file_bytes, make_corpus, make_retriever

SHARDS = 30
STAGES: dict[str, dict[str, Any]] = {
    "encode": {"dtype": "float32"},
    "generate": {"queries_each": 4, "query_length": 12, "token_budget": 2_048},
}
SETTINGS: dict[str, Any] = {"encode": EncodeSettings, "generate": GenerateSettings}
MAKE: dict[str, Any] = {"encode": encode, "generate": generate}
DRIVER = """
import json, sys
from raydense.recipes.stage import VERBS
verb, given = sys.argv[1], json.loads(sys.argv[2])
VERBS[verb].run(VERBS[verb].settings(**given))
"""
pytestmark = pytest.mark.usefixtures("ray_cluster")


@dataclass(frozen=True)
class World:
    """A stage, its inputs, and what it makes undisturbed."""

    verb: str
    root: Path

    def given(self, output: str) -> dict[str, Any]:
        inputs = {"model": str(self.root / "model"), "corpus": str(self.root / "corpus")}
        return {"output": str(self.root / output), **inputs, **STAGES[self.verb]}

    def make(self, output: str) -> Artifact:
        return MAKE[self.verb](SETTINGS[self.verb](**self.given(output)))


@pytest.fixture(scope="module", params=["encode", pytest.param("generate", marks=pytest.mark.long)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "encode":
        make_retriever(root / "model")
        make_corpus(root / "corpus", 2_400, 2_400 // SHARDS)
    else:
        make_tiny_generator([" ".join(WORDS)] * 3, root / "model", seed=3)
        make_corpus(root / "corpus", 420, 420 // SHARDS)
    return World(request.param, root)


@pytest.fixture(scope="module")
def undisturbed(world: World) -> Artifact:
    return world.make("undisturbed")


def committed(output: Path) -> list[Path]:
    """The files of shards that have a record."""
    records = [json.loads(record.read_text())["path"] for record in (output / ".work" / "commits").glob("*-*.json")]
    return [output / path for path in records if "-" in path]


def wait_for(found: Callable[[], object], alive: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not found():
        assert alive(), "ended before it could be killed"
        assert time.monotonic() < end, "nothing was committed in 300 s"
        time.sleep(0.005)


def stamps(files: list[Path]) -> dict[str, tuple[int, int]]:
    """A file written again has another inode and time."""
    return {f.name: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files}


def test_driver_killed(world: World, undisturbed: Artifact) -> None:
    output = world.root / "driver"
    driver = forked.Popen([sys.executable, "-c", DRIVER, world.verb, json.dumps(world.given("driver"))])
    try:
        wait_for(lambda: committed(output), lambda: driver.poll() is None)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    kept = stamps(committed(output))
    assert 0 < len(kept) < SHARDS
    assert not (output / "manifest.json").exists()
    resumed = world.make("driver")
    assert kept.items() <= stamps(resumed.parts(".arrow")).items()
    assert file_bytes(output) == file_bytes(undisturbed.path)
    assert resumed.fingerprint == undisturbed.fingerprint
    assert resumed.summary["tokens"] == undisturbed.summary["tokens"]


def test_actor_killed(world: World, undisturbed: Artifact) -> None:
    output = world.root / "actor"
    made: list[Artifact] = []
    job = threading.Thread(target=lambda: made.append(world.make("actor")))
    job.start()
    # one that is yet starting, and then one at work
    for moment in (model_actors, lambda: len(committed(output)) > 5):
        wait_for(moment, job.is_alive)
        kept, killed = stamps(committed(output)), 0
        while not killed:
            assert job.is_alive(), "ended before it could be killed"
            killed = kill_actors()
    assert killed < len(kept) < SHARDS
    job.join(timeout=300)
    again = kept.items() - stamps(made[0].parts(".arrow")).items()
    assert len(again) <= killed
    assert file_bytes(output) == file_bytes(undisturbed.path)
    assert made[0].fingerprint == undisturbed.fingerprint


def kill_actors() -> int:
    """How many there were to kill."""
    killed = 0
    for pid in model_actors():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def model_actors() -> list[int]:
    """The processes of this Ray that hold a model; other Rays on the machine are not ours to kill."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended since
            found += [process.pid] if "MapWorker" in "".join(process.cmdline()[:1]) else []
    return found
