"""kill -9 of a whole recipe at random moments, run again until it is done: every artifact is the undisturbed one, byte for byte."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import psutil
import pytest
from inference_world import make_reranker, make_retriever
from warm_worker import cold_environment

RECIPE = """
seed: 3
given: {reranker: none}
stages:
  data: {do: sample, passages: 300, train_queries: 96, dev_queries: 16, test_queries: 24, shard_rows: 60}
  words: {do: index, kind: bm25, corpus: $data/corpus, shards: 2}
  bm25: {do: search, index: $words, queries: $data/queries, k: 20, block: 32}
  negatives: {do: mine, run: $bm25, corpus: $data/corpus, queries: $data/queries, qrels: $data/qrels/train, negatives: 4}
  retriever: {do: train, objective: retriever, model: tiny, corpus: $data/corpus, queries: $data/queries, examples: $negatives,
    engine: {name: ddp}, max_steps: 15, batch_size: 8, lr: 1.0e-3, checkpoint_every: 4, log_every: 1}
  vectors: {do: encode, model: $retriever, corpus: $data/corpus}
  dense: {do: index, kind: faiss, embeddings: $vectors, shards: 2}
  found: {do: search, index: $dense, model: $retriever, queries: $data/queries, qrels: $data/qrels/test, k: 20, block: 8}
  reranked: {do: rerank, model: $reranker, run: $found, corpus: $data/corpus, queries: $data/queries, depth: 5, block: 6}
  report: {do: evaluate, run: [BM25=$bm25, dense=$found, re-ranked=$reranked], qrels: $data/qrels/test,
    queries: $data/queries, corpus: $data/corpus, models: [$retriever]}
"""
STAGES = re.findall(r"^  (\w+): {do", RECIPE, re.MULTILINE)
KILLS = 2
TIMED = ("seconds", "queries_per_second", "tokens_per_second", "memory", "input_wait")
_MOST_FILES = 15


class Run:
    """A `raydense run` of the recipe as a process group of its own, in `folder`; its output goes to a file there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / f"log-{len(list(folder.glob('log-*')))}"
        command = [sys.executable, "-m", "raydense", "run", "../recipe.yaml", "--output", "out", "--set", "reranker=../reranker"]
        with open(self.log, "w") as log:
            self.process = forked.Popen(command, cwd=folder, env=cold_environment(), stdout=log, stderr=log, start_new_session=True)

    def printed(self) -> str:
        return self.log.read_text()

    def finish(self) -> str:
        assert self.process.wait(300) == 0, self.printed()
        return self.printed()

    def kill_in(self, stage: str, files: int) -> list[psutil.Process]:
        """kill -9 once `stage` has begun and has so many files in its folder, or is done; returns what had descended from it."""
        begun, done = f"] {stage}: ", f"] {stage}: done"
        while not (begun in self.printed() and (done in self.printed() or files_in(self.folder / "out" / stage) >= files)):
            assert self.process.poll() is None, f"ended before {stage}: {self.printed()}"
            time.sleep(0.002)
        descended = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL
        return descended


def files_in(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def checksums(folder: Path) -> dict[str, str]:
    """Of every file that the stages made, manifests apart."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", "seconds.json"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def manifests(folder: Path) -> dict[str, object]:
    """Of every artifact, without what was timed."""
    found = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in folder.rglob("manifest.json")}
    return {name: without_times(manifest) for name, manifest in found.items()}


def without_times(value: object) -> object:
    match value:
        case dict():
            return {key: without_times(inner) for key, inner in value.items() if key not in TIMED}
        case list():
            return [without_times(inner) for inner in value]
    return value


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.is_running() and process.status() != psutil.STATUS_ZOMBIE else []
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    """Starts the recipe in a folder of `tmp_path`, next to it and a re-ranker; whatever still runs at the end is killed."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    make_reranker(tmp_path / "reranker", make_retriever(tmp_path / "encoder"))
    runs: list[Run] = []

    def start(name: str) -> Run:
        (tmp_path / name).mkdir(exist_ok=True)
        runs.append(Run(tmp_path / name))
        return runs[-1]

    yield start
    for left in (run for run in runs if run.process.poll() is None):
        os.killpg(left.process.pid, signal.SIGKILL)
        left.process.wait()


@pytest.mark.long
def test_killed_again_and_again(run: Callable[[str], Run], tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = run("whole")  # next to the other one: neither may touch the other's Ray
    rng = random.Random(os.getpid())
    chosen = sorted(rng.sample(STAGES, KILLS), key=STAGES.index)
    # the run ends soon after the last stage has its files
    moments = [(stage, rng.randrange(2 if stage == STAGES[-1] else _MOST_FILES)) for stage in chosen]
    print("killed at", moments)
    orphans = [orphan for stage, files in moments for orphan in run("killed").kill_in(stage, files)]
    printed = run("killed").finish()
    undisturbed.finish()

    before = STAGES[: STAGES.index(moments[-1][0])]
    assert [stage for stage in before if f"] {stage}: done before" not in printed] == []
    assert checksums(killed / "out") == checksums(whole / "out")
    assert manifests(killed / "out") == manifests(whole / "out")
    assert not list((killed / "out").rglob(".work"))
    assert run("killed").finish().count(": done before") == len(STAGES), "nothing is left to do"
    deadline = time.monotonic() + 60
    while left := living(orphans):
        assert time.monotonic() < deadline, f"a killed run's Ray lives on: {left}"
        time.sleep(0.05)
