"""Encoding killed in the middle, driver or actor: nothing is lost, nothing is computed twice, the artifact is the undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from raydense.data.artifact import Artifact
from raydense.inference.encode import encode
from raydense.ray_session import ensure_ray
from raydense.settings import EncodeSettings
from tests.inference_world import file_bytes, make_corpus, make_retriever

PASSAGES, SHARD_ROWS = 8_000, 400
ENCODE = """
import sys
from raydense.inference.encode import encode
from raydense.settings import EncodeSettings
folder, output = sys.argv[1:]
encode(EncodeSettings(output=output, model=f"{folder}/model", corpus=f"{folder}/corpus", dtype="float32"))
"""


@pytest.fixture(scope="module", autouse=True)
def own_ray() -> Iterator[None]:
    there = ray.is_initialized()
    ensure_ray()
    yield
    if not there:
        ray.shutdown()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kill")
    make_retriever(root / "model")
    make_corpus(root / "corpus", PASSAGES, SHARD_ROWS)
    return root


def settings(world: Path, output: Path) -> EncodeSettings:
    inputs = {"model": str(world / "model"), "corpus": str(world / "corpus")}
    return EncodeSettings(output=str(output), dtype="float32", **inputs)


@pytest.fixture(scope="module")
def undisturbed(world: Path) -> Artifact:
    return encode(settings(world, world / "undisturbed"))


def committed(output: Path) -> list[Path]:
    """The files of vectors that have a record."""
    return [output / json.loads(r.read_text())["path"] for r in (output / ".work" / "commits").glob("embeddings-*.json")]


def wait_for(found: Callable[[], object], alive: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not found():
        assert alive(), "ended before it could be killed"
        assert time.monotonic() < end, "nothing was committed in 300 s"
        time.sleep(0.005)


def stamps(files: list[Path]) -> dict[str, tuple[int, int]]:
    """A file written again has another inode and time."""
    return {f.name: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files}


def test_driver_killed(world: Path, undisturbed: Artifact) -> None:
    output = world / "driver"
    driver = subprocess.Popen([sys.executable, "-c", ENCODE, str(world), str(output)])
    try:
        wait_for(lambda: committed(output), lambda: driver.poll() is None)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    kept = stamps(committed(output))
    assert 0 < len(kept) < PASSAGES // SHARD_ROWS
    assert not (output / "manifest.json").exists()
    resumed = encode(settings(world, output))
    assert kept.items() <= stamps(resumed.parts(".arrow")).items()
    assert file_bytes(output) == file_bytes(undisturbed.path)
    assert resumed.fingerprint == undisturbed.fingerprint
    assert resumed.summary["tokens"] == undisturbed.summary["tokens"]


def test_actor_killed(world: Path, undisturbed: Artifact) -> None:
    output = world / "actor"
    made: list[Artifact] = []
    job = threading.Thread(target=lambda: made.append(encode(settings(world, output))))
    job.start()
    wait_for(lambda: committed(output), job.is_alive)
    victims = model_actors()
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert len(committed(output)) < PASSAGES // SHARD_ROWS
    job.join(timeout=300)
    assert file_bytes(output) == file_bytes(undisturbed.path)
    assert made[0].fingerprint == undisturbed.fingerprint


def model_actors() -> list[int]:
    """The processes of this Ray that hold a model; other Rays on the machine are not ours to kill."""
    import psutil

    mine = psutil.Process().children(recursive=True)
    return [p.pid for p in mine if p.cmdline() and "MapWorker" in p.cmdline()[0]]
