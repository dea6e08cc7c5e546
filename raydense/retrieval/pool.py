"""A pool of shard actors: blocks of queries are fanned out to every shard, and the hits merged exactly.

One pool class stands before FAISS and BM25. An actor gets paths, loads in its constructor, and is restarted when it dies; a call
that it had is asked again. A pool with a name outlives its job: other jobs connect to it, and turn it to another index while it is
asked (`keeper`).
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import ray

from raydense.errors import InputError
from raydense.retrieval.asking import Answer, Block, Queries, Table, Version, Versions
from raydense.retrieval.autoscaler import await_nodes
from raydense.retrieval.keeper import start_keeper
from raydense.retrieval.memory import MemoryPlan, announce, plan_memory
from raydense.retrieval.merge import Hits, no_hits
from raydense.retrieval.named import asked, check_name, close_pool, pool_status, versions_of
from raydense.retrieval.search_params import check_search_params
from raydense.retrieval.shard_actor import PoolPlan, shard_nodes, start_actor
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import free_by_node
from raydense.runtime.session import autoscales, ensure_ray
from raydense.storage import Artifact

_BLOCK = 2_048
_PATIENCE_S = 600.0
_RELEASE_S, _TURNED_S = 10.0, 40.0  # until what ended actors held is free again; and those that a swap retired, which end later


class SearchPool:
    """`with SearchPool.start(index) as pool: scores, rows = pool.search(queries, k)`."""

    def __init__(self, versions: Versions, name: str = "", ends: bool = True) -> None:
        self._versions, self.name, self._ends = versions, name, ends
        self._turn = 0

    @classmethod
    def start(
        cls,
        index: str | Path | Artifact,
        replicas: int = 1,
        name: str | None = None,
        threads: int = 0,
        gpu: bool = False,
        search_params: str = "",
        idle_timeout: float = 0.0,
    ) -> SearchPool:
        """Start `replicas` actors of every shard; returns at once, while they load, or when nodes have come that they wait for.

        With a `name` the actors are detached: `connect(name)` finds them from another job, until `close`, or until nobody has asked
        for `idle_timeout` seconds (0: for ever); it returns when each shard has an actor that is loaded. `threads` of an actor: 0
        shares a machine's cores between its actors. Raises InputError when the memory plan fits neither the nodes nor those that Ray's
        autoscaler would start, search parameters do not suit the index, GPUs are asked for and not there, or the name is taken.
        """
        if name:
            check_name(name)
        artifact = index if isinstance(index, Artifact) else Artifact.open(index, "index")
        check_search_params(artifact, search_params)
        ensure_ray()
        if gpu:
            _check_gpu(artifact)
        memory = plan_memory(artifact, replicas)
        plan = PoolPlan(artifact.located, artifact.fingerprint, replicas, threads, gpu, search_params, 1)
        plan, fits = _fitting(artifact, memory, plan)
        if name:
            return cls._keep(name, plan, memory.actor_bytes, idle_timeout, fits)
        actors = [[start_actor(plan, shard, size) for _ in range(replicas)] for shard, size in enumerate(memory.actor_bytes)]
        pool = cls(Versions(Version(Table(1, plan, actors))))
        if not fits:
            loading = [actor.describe.remote() for replicas in actors for actor in replicas]
            try:
                await_nodes(memory.actor_bytes, lambda: len(ray.wait(loading, num_returns=len(loading), timeout=0)[1]))
            except BaseException:
                pool.close()
                raise
        return pool

    @classmethod
    def _keep(cls, name: str, plan: PoolPlan, actor_bytes: list[int], idle_timeout: float, fits: bool) -> SearchPool:
        try:
            start_keeper(name, uuid.uuid4().hex[:8], plan, actor_bytes, idle_timeout)
        except ValueError as error:
            what = f"there is a search pool of the name {name!r} already"
            raise InputError(what, "name", "connect to it, close it, or take another name") from error
        try:
            if not fits:
                await_nodes(actor_bytes, lambda: sum(actor["state"] == "loading" for actor in asked(name, "status")["actors"]))
            return cls(versions_of(name, False), name)
        except InputError:
            with suppress(InputError):
                close_pool(name)
            raise

    @classmethod
    def connect(cls, name: str, pinned: bool = False) -> SearchPool:
        """The pool that was started under `name`, perhaps by another job; leaving `with` lets it go on, `close` ends it.

        Waits until each shard has an actor that is loaded. Raises InputError if there is no such pool; with `pinned`, also any later
        search does when the pool has gone on to another index, so that all answers come from one.
        """
        check_name(name)
        ensure_ray()
        return cls(versions_of(name, pinned), name, ends=False)

    def swap(
        self, index: str | Path | Artifact, replicas: int | None = None, search_params: str | None = None, patience: float = _PATIENCE_S
    ) -> None:
        """Turn a pool with a name to another index while it is asked: no call fails, and none is answered by two indexes.

        The new actors are started beside the old ones, and take over when all are loaded; after `patience` seconds, one of each shard
        is enough. `replicas` and `search_params` stay what they are unless given. Raises InputError where there is no room beside the
        old actors, an actor cannot load, or the index takes other queries than the old one; the pool then stays as it is.
        """
        artifact = index if isinstance(index, Artifact) else Artifact.open(index, "index")
        version = self._versions.renew(self._versions.current())
        _check_alike(version.index, artifact)
        given = version.plan.search_params if search_params is None else search_params
        check_search_params(artifact, given)
        copies = replicas or version.plan.replicas
        plan = replace(version.plan, index=artifact.located, fingerprint=artifact.fingerprint, replicas=copies, search_params=given)
        beside = plan_memory(version.index, version.plan.replicas)
        memory = plan_memory(artifact, copies)
        plan, _ = _fitting(artifact, memory, plan, beside.actor_bytes * beside.replicas)
        late = f"search: waits for the actors of {artifact.place} to start and load, beside those that serve now"
        hindrance: str = asked(self._kept_name(), "swap", plan, memory.actor_bytes, uuid.uuid4().hex, patience, late=late)
        if hindrance:
            raise InputError(
                f"could not turn to it ({hindrance})", artifact.place, f"the pool {self.name!r} still answers from {version.plan.index}"
            )
        self._versions.renew(self._versions.current())

    def status(self) -> dict[str, Any]:
        """A pool with a name as JSON: index, fingerprint, version, seconds without a call, and of each actor where it is and how."""
        return pool_status(self._kept_name())

    def _kept_name(self) -> str:
        if not self.name:
            raise InputError("the pool has no name", "name", "give one to SearchPool.start")
        return self.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ends:
            self.close()

    def close(self) -> None:
        """End the actors, also those of a pool that was connected to."""
        if self.name:
            close_pool(self.name)
            return
        for actor in (a for replicas in self.actors for a in replicas):
            ray.kill(actor, no_restart=True)

    @property
    def plan(self) -> PoolPlan:
        """What the pool was started with, or turned to, as far as this caller knows."""
        return self._versions.current().plan

    @property
    def index(self) -> Artifact:
        """The index that answers, as far as this caller knows."""
        return self._versions.current().index

    @property
    def actors(self) -> list[list[Any]]:
        """The actors of each shard."""
        return self._versions.current().actors

    def search(self, queries: Queries, k: int) -> Hits:
        """The best k passages of each query, by score falling, then row rising.

        `queries` are float32 [n, d] for FAISS, a list of strings for BM25. Returns scores float32 [n, min(k, rows of the index)] and
        rows int64 of the same shape; -inf and -1 where there is none. All come from one version of the index; `answer` says which.
        """
        return self.answer(queries, k).hits

    def answer(self, queries: Queries, k: int) -> Answer:
        """As `search`, with the fingerprint of the index that answered: blocks that an earlier version answered are asked again."""
        blocks = list(_cut(queries, _BLOCK))
        parts = list(self.answers(blocks, k))
        if not parts:
            version = self._versions.current()
            return Answer(queries, no_hits(0, min(k, version.index.rows)), version.plan.fingerprint, version.number)
        while any(part.version != parts[-1].version for part in parts):
            newest = max(part.version for part in parts)
            parts = [part if part.version == newest else next(self.answers([part.queries], k)) for part in parts]
        scores, rows = (np.concatenate([part.hits[i] for part in parts]) for i in (0, 1))
        return replace(parts[-1], queries=queries, hits=(scores, rows))

    def search_blocks(self, blocks: Iterable[Queries], k: int) -> Iterator[tuple[Queries, Hits]]:
        """As `search`, over a stream of blocks of queries of any length: each block with its hits, in order.

        At most two blocks per replica are taken from the stream and not yet given back: that is what bounds the memory. Each block
        comes from one version of the index; `answers` says which.
        """
        return ((answer.queries, answer.hits) for answer in self.answers(blocks, k))

    def answers(self, blocks: Iterable[Queries], k: int) -> Iterator[Answer]:
        """As `search_blocks`, each block with the fingerprint of the index that answered."""
        if k < 1:
            raise InputError(f"k is {k}", "k", "give at least 1")
        waiting: deque[Block] = deque()
        for queries in blocks:
            self._turn += 1
            waiting.append(Block(self._versions, queries, k, self._turn))
            if len(waiting) >= 2 * self.plan.replicas:
                yield waiting.popleft().answer()
        for block in waiting:
            yield block.answer()


def _fitting(index: Artifact, memory: MemoryPlan, plan: PoolPlan, beside: Sequence[int] = ()) -> tuple[PoolPlan, bool]:
    """The plan with the actors that share a node, and whether the nodes that are up have room for them `beside` those that stay.

    InputError where they have none, also as others have reserved it, and no others come by themselves.
    """
    rooms = {node["NodeID"]: int(node["Resources"].get("memory", 0)) for node in shard_nodes(plan.gpu)}
    announce(memory, index)
    actors = len(memory.actor_bytes) * memory.replicas
    try:
        memory.check(list(rooms.values()), index.summary["factory"], beside)
        _check_free(index, memory, rooms, beside)
    except InputError:
        if not autoscales():
            raise
        say("search: that is more than the nodes have free that are up: waits for others")
        return replace(plan, neighbours=max(1, min(actors, max(rooms.values(), default=0) // max(memory.actor_bytes)))), False
    return replace(plan, neighbours=-(-actors // len(rooms))), True


def _check_free(index: Artifact, memory: MemoryPlan, rooms: dict[str, int], beside: Sequence[int]) -> None:
    """InputError where the plan does not fit into what nobody has reserved of the nodes, for longer than ended actors need to be gone."""
    end = time.monotonic() + (_TURNED_S if beside else _RELEASE_S)
    while True:
        there = free_by_node()
        free = [int(there.get(node, {}).get("memory", 0)) for node in rooms]
        try:
            return memory.check(list(rooms.values()), index.summary["factory"], beside, free)
        except InputError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def _check_alike(old: Artifact, new: Artifact) -> None:
    """Callers go on as they are: the new index must take the queries that the old one takes."""
    for key in ("kind", "dimension"):
        if old.summary.get(key) != new.summary.get(key):
            what = f"its {key} is {new.summary.get(key)}, the pool's is {old.summary.get(key)}"
            raise InputError(what, new.place, "start another pool for it: callers of this one send other queries")


def _cut(queries: Queries, block: int) -> Iterator[Queries]:
    return (queries[at : at + block] for at in range(0, len(queries), block))


def _check_gpu(index: Artifact) -> None:
    if index.summary["kind"] == "bm25":
        raise InputError("BM25 does not use GPUs", "gpu", "leave it out")
    from raydense.retrieval.faiss_shard import has_gpu_support

    if not has_gpu_support():
        raise InputError("this FAISS has no GPU support", "gpu", "install faiss-gpu instead of faiss-cpu, or leave gpu out")
    if ray.cluster_resources().get("GPU", 0) < 1 and not autoscales():
        raise InputError("the cluster has no GPU", "gpu", "leave it out")
