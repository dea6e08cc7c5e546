"""The actor that holds one shard of one index during its whole life; it batches small searches of several callers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydense.errors import InputError
from raydense.retrieval.batching import Batching
from raydense.retrieval.gpu import is_half, temporary_bytes
from raydense.retrieval.kind import kind_of
from raydense.retrieval.merge import Hits
from raydense.retrieval.nodes import claims, nodes_apart
from raydense.runtime.metrics import show, time_taken
from raydense.runtime.session import physical_cpus
from raydense.storage import Artifact

NAMESPACE = "raydense"
BUSY, RETIRED = "busy", "retired"
_WAITING = 32  # searches that may wait in an actor; it answers BUSY to further ones, and their callers retry
_GROUPS = {"search": 2 * _WAITING, "settle": 1, "state": 2}


@dataclass(frozen=True)
class PoolPlan:
    """The plan of a pool, which every actor has, so that a name is enough to connect."""

    index: str
    fingerprint: str
    replicas: int
    threads: int
    gpu: bool
    search_params: str
    neighbours: int
    sharing: int = 1  # actors of a GPU
    detached: bool = True  # with a name: it outlives its job

    def open(self) -> Artifact:
        """The index; InputError if its folder holds another one now."""
        index = Artifact.open(self.index, "index")
        if index.fingerprint != self.fingerprint:
            what = f"was made again (fingerprint {index.fingerprint[:12]}, the pool was started with {self.fingerprint[:12]})"
            raise InputError(what, self.index, "close the pool and start it again")
        return index


class ShardActor:
    """Holds one shard: `search` searches it, and `settle` resolves the ties of a block while the next block is searched."""

    def __init__(self, plan: PoolPlan, shard: int) -> None:
        self.plan = plan
        self._inside = self._answered = 0
        self._counting, self._last, self._retired = threading.Lock(), time.monotonic(), False
        self._tags = {"index": plan.fingerprint[:12], "shard": str(shard)}
        index = plan.open()
        kind = kind_of(index)
        threads = plan.threads or max(1, physical_cpus() // plan.neighbours)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.shard: Any = kind.open_shard(shard, threads, plan.search_params)
        if plan.gpu:
            params = kind.params(plan.search_params)
            self.shard.load_on_gpu(index.summary["factory"], is_half(index.summary), temporary_bytes(plan.sharing), params)
        self._batching = Batching(self.shard.nearest, kind.join if kind.hits_stand_alone else None)

    @ray.method(concurrency_group="search")
    def search(self, how: tuple[int, ...], count: int, *queries: Any) -> Hits | str:
        """The shard's hits of `count` queries; `how` is k, and whether to rescore them.

        BUSY instead if too many searches wait, RETIRED if the pool has switched to other actors.
        """
        with self._counted():
            if self._retired:
                return RETIRED
            if self._inside > _WAITING:
                return BUSY
            begun = time.monotonic()
            hits = self._batching.ask(queries, count, *how)
            time_taken("shard_seconds", time.monotonic() - begun, **self._tags)
            with self._counting:
                self._answered += 1
            return hits

    @ray.method(concurrency_group="settle")
    def settle(self, method: str, *args: Any) -> Any:
        with self._counted():
            return getattr(self.shard, method)(*args)

    @ray.method(concurrency_group="state")
    def describe(self) -> tuple[PoolPlan, int]:
        """The pool's plan, and the id of the process that holds this shard."""
        return self.plan, os.getpid()

    @ray.method(concurrency_group="state")
    def retire(self) -> None:
        """Refuse new searches; those in progress are finished, and settled."""
        self._retired = True

    @ray.method(concurrency_group="state")
    def health(self) -> dict[str, Any]:
        """The node and process of this actor, its calls in progress, the searches that it answered, and the seconds since the last call."""
        node = ray.get_runtime_context().get_node_id()
        idle = 0.0 if self._inside else time.monotonic() - self._last
        return {"node": node, "pid": os.getpid(), "at_work": self._inside, "answered": self._answered, "idle_s": round(idle, 1)}

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._counting:
            self._inside += more
            self._last = time.monotonic()
            show("searches_waiting", self._inside, **self._tags)


def lifetime(plan: PoolPlan) -> dict[str, str]:
    """Ray's option for an actor of a pool with a name: without it, the actor ends with the process that started it, however that ends."""
    return {"lifetime": "detached"} if plan.detached else {}


def start_actor(plan: PoolPlan, shard: int, memory: int, name: str = "", node: str = "") -> Any:
    """Start the actor of a shard: by `name`, detached if the plan is, where one is given; on `node` if one is given.

    Ray tries a call once: its caller tries another actor, which is faster than waiting for a restart.
    """
    options: dict[str, Any] = {
        **claims(plan.gpu, ray.nodes(), plan.sharing),
        "memory": memory,
        "max_restarts": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True) if node else _placing(plan),
        "concurrency_groups": _GROUPS,
    }
    if name:
        options |= {"name": name, "namespace": NAMESPACE, **lifetime(plan)}
    return ray.remote(**options)(ShardActor).remote(plan, shard)


def _placing(plan: PoolPlan) -> str:
    """Ray's strategy for an actor: over all nodes, or its default, by which it takes none with GPUs while others have room.

    No node by its id: while such an actor waits for memory, Ray asks its autoscaler for no node.
    """
    return "DEFAULT" if plan.detached and nodes_apart(plan.gpu) else "SPREAD"
