"""Workers that compute on CPUs run under the jemalloc that Ray ships, unless the user has chosen an allocator."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from inference_world import WORDS
from training_data import TrainingData, make_training_data

from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.models.tiny import make_tiny_encoder
from raydense.refresh.train import train
from raydense.runtime.allocator import cpu_worker_env

PARTS = """
import numpy as np
draw, held = np.random.default_rng(0), []
for part in range(16):  # as `encode` does: small batches, joined, put in order, and cast
    batches = [np.ones((rows, 256), np.float32) for rows in draw.integers(60, 160, 500)]
    joined = np.concatenate(batches)
    batches.clear()
    ordered = np.empty_like(joined)
    ordered[:] = joined
    half = ordered.astype(np.float16)
    held.append(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")))
print(held[5], held[-1])
"""

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("data"))


@contextmanager
def allocators(title: str) -> Iterator[set[bool]]:
    """Whether the processes below this one that have `title` in their title had jemalloc loaded, while the block runs."""
    seen: set[bool] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError):
                    # of a process that is about to end, nothing is mapped
                    if title in " ".join(process.cmdline()) and (mapped := Path(f"/proc/{process.pid}/maps").read_text()):
                        seen.add("libjemalloc" in mapped)

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    done.set()
    thread.join()


def test_encoding_actors_and_training_workers_have_it(data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    make_tiny_encoder([" ".join(WORDS)], tmp_path / "tiny", seed=3)
    given = {"model": str(tmp_path / "tiny"), "corpus": str(data.root / "sample/corpus"), "output": str(tmp_path / "vectors")}
    with allocators("ray::MapWorker(MapBatches(_Actor_") as seen:
        encode(EncodeSettings.read(given))
    assert seen == {True}
    with allocators("ray::RayTrainWorker") as seen:
        train(data.settings(tmp_path / "model", max_steps=1))
    assert seen == {True}


def test_what_a_worker_holds_does_not_grow_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    done = subprocess.run([sys.executable, "-c", PARTS], env=os.environ | cpu_worker_env(), capture_output=True, text=True, check=True)
    early, late = map(int, done.stdout.split())
    assert late < 1.2 * early, f"{early} KiB after 6 parts, {late} KiB after 16"


def test_who_has_chosen_an_allocator_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("MALLOC_CONF", "narenas:2")
    assert Path(cpu_worker_env()["LD_PRELOAD"]).is_file()
    assert cpu_worker_env()["MALLOC_CONF"] == "narenas:2"
    monkeypatch.setenv("LD_PRELOAD", "")
    assert cpu_worker_env() == {}
