"""Two indexes of one corpus, of different vectors, with what each answers alone, to detect a mixed answer; and callers."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
from embeddings import write_embeddings
from ray import cloudpickle

from raydense.retrieval.asking import Answer
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Artifact

DIMENSION, K = 24, 10
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker of Ray does not find this file


@dataclass(frozen=True)
class Versions:
    """The indexes, queries float32 [n, d], and the hits of each index for these, by its fingerprint."""

    indexes: tuple[Artifact, Artifact]
    queries: np.ndarray
    alone: dict[str, tuple[np.ndarray, np.ndarray]]

    def is_right(self, answer: Answer, which: slice) -> bool:
        """Whether an answer to some of the queries is that of the index that it names, and of it alone."""
        scores, rows = (part[which] for part in self.alone[answer.index])
        return np.array_equal(answer.hits[0], scores) and np.array_equal(answer.hits[1], rows)


def make_versions(folder: Path, rows: int = 2_000, queries: int = 200, shards: int = 2) -> Versions:
    """Make both indexes and ask each alone; no query has the same hits in both, nor are those of a shard."""
    made = [_index(folder / name, rows, shards, seed) for seed, name in enumerate(("first", "second"))]
    asked = np.random.default_rng(9).standard_normal((queries, DIMENSION)).astype(np.float32)
    alone = {}
    for one in made:
        with SearchPool.start(one) as pool:
            alone[one.fingerprint] = pool.search(asked, K)
    first, second = (alone[one.fingerprint] for one in made)
    assert (first[1] != second[1]).any(axis=1).all()
    return Versions((made[0], made[1]), asked, alone)


def _index(folder: Path, rows: int, shards: int, seed: int) -> Artifact:
    vectors = np.random.default_rng(seed).standard_normal((rows, DIMENSION)).astype(np.float32)
    write_embeddings(folder / "embeddings", vectors, model=f"m{seed}")
    return index(IndexSettings(kind="faiss", embeddings=str(folder / "embeddings"), shards=shards, output=str(folder / "index")))


@dataclass
class Asked:
    """What became of a caller's calls: seconds of each, those that failed and why, those that were wrong, and the indexes that answered."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    mixed: int = 0
    indexes: set[str] = field(default_factory=set)


class Caller:
    """A job of its own that asks a pool, some queries a call; made an actor of Ray with two concurrent calls, so that it reports its progress."""

    def __init__(self, name: str, versions: Versions, seed: int) -> None:
        self.pool, self.versions = SearchPool.connect(name), versions
        self.rng, self.asked = np.random.default_rng(seed), Asked()

    def done(self) -> int:
        return len(self.asked.seconds)

    def ask(self, calls: int, most: int = 8) -> Asked:
        """Ask `calls` times, 1 to `most` queries each, and compare every answer with what its index answers alone."""
        self.asked = Asked()
        while len(self.asked.seconds) < calls:
            at = int(self.rng.integers(0, len(self.versions.queries) - most))
            which = slice(at, at + int(self.rng.integers(1, most + 1)))
            begun = time.perf_counter()
            try:
                answer = self.pool.answer(self.versions.queries[which], K)
                self.asked.mixed += not self.versions.is_right(answer, which)
                self.asked.indexes.add(answer.index)
            except Exception as error:
                self.asked.failed.append(repr(error))
            self.asked.seconds.append(time.perf_counter() - begun)
        return self.asked


def ask_at_once(callers: list[Any], calls: int, faults: list[Callable[[], None]]) -> Asked:
    """Have all callers ask, `calls` in all, and let the faults happen one after another, evenly over the calls."""
    running = [caller.ask.remote(-(-calls // len(callers))) for caller in callers]
    for number, fault in enumerate(faults, 1):
        while sum(ray.get([caller.done.remote() for caller in callers])) < calls * number // (len(faults) + 1):
            time.sleep(0.02)
        fault()
    whole = Asked()
    for asked in ray.get(running):
        whole.seconds += asked.seconds
        whole.failed += asked.failed
        whole.mixed += asked.mixed
        whole.indexes |= asked.indexes
    return whole


def start_callers(name: str, versions: Versions, number: int) -> list[Any]:
    """Callers that have connected."""
    callers = [ray.remote(num_cpus=0, max_concurrency=2)(Caller).remote(name, versions, seed) for seed in range(number)]
    ray.get([caller.done.remote() for caller in callers])
    return callers


def kill_one(pool: SearchPool, number: int) -> None:
    """kill -9 the process of a shard actor that is there: another one each time."""
    there: list[int] = []
    while not there:  # on a busy machine none may answer in a second
        there = [actor["pid"] for actor in pool.status()["actors"] if actor["state"] == "ready"]
    os.kill(there[number % len(there)], signal.SIGKILL)


def until(there: Callable[[], bool], what: str) -> None:
    """Wait for it, two minutes at most; `what` names what did not come."""
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, what
        time.sleep(0.05)
