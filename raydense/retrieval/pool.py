"""A pool of shard actors: every shard searches each block of queries, and the hits are merged exactly.

One pool class serves FAISS and BM25. An actor gets paths, loads in its constructor, and is restarted when it dies; its
calls are sent again. A pool with a name outlives its job, unless it is to end with it: other jobs connect to it, and switch it to another index while it serves
(`controller`).
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
from raydense.retrieval.asking import Answer, Block, of_one_version
from raydense.retrieval.autoscaler import await_nodes
from raydense.retrieval.controller import start_controller
from raydense.retrieval.gpu import LARGEST_K, takes_cpu
from raydense.retrieval.gpu_nodes import check_gpu, plan_gpus
from raydense.retrieval.kind import kind_of
from raydense.retrieval.memory import MemoryPlan, announce, plan_memory
from raydense.retrieval.merge import Hits, no_hits
from raydense.retrieval.named import asked, check_name, close_pool, pool_status, versions_of
from raydense.retrieval.nodes import nodes_apart, shard_nodes
from raydense.retrieval.shard_actor import PoolPlan, start_actor
from raydense.retrieval.versions import Queries, Table, Version, Versions, check_k
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import free_by_node
from raydense.runtime.session import autoscales, ensure_ray
from raydense.storage import Artifact

_BLOCK = 2_048
_PATIENCE_S = 600.0
_RELEASE_S, _RETIRED_S = 10.0, 40.0  # until the memory of ended actors is free; and that of actors retired by a swap, which end later


class SearchPool:
    """`with SearchPool.start(index) as pool: scores, rows = pool.search(queries, k)`."""

    def __init__(self, versions: Versions, name: str = "", ends: bool = True, controller: Any = None) -> None:
        self._versions, self.name, self._ends = versions, name, ends
        self._controller = controller  # the handle that keeps the controller of a pool that is not detached
        self._blocks, self._reported = 0, False

    @classmethod
    def start(
        cls,
        index: str | Path | Artifact,
        *,
        shard_replicas: int = 1,
        name: str | None = None,
        threads: int = 0,
        gpu: bool = False,
        search_params: str = "",
        idle_timeout: float = 0.0,
        detached: bool = True,
    ) -> SearchPool:
        """Start `shard_replicas` actors of every shard; returns while they load, or when the nodes that they need have joined.

        With a `name` the actors are detached: `connect(name)` finds them from another job, until `close`, or until `idle_timeout`
        seconds pass without a call (0: never); then `start` returns when each shard has a loaded actor. If it is not `detached`, a
        pool with a name also ends with this job, even one that is killed. `threads` per actor: 0 divides a machine's cores among
        its actors. Raises InputError if the memory plan fits neither the nodes nor those that Ray's
        autoscaler would start, search parameters do not suit the index, GPUs are requested and absent, or the name is taken.
        """
        if name:
            check_name(name, detached)
        artifact = index if isinstance(index, Artifact) else Artifact.open(index, "index")
        kind_of(artifact).check_params(search_params)
        ensure_ray()
        if gpu:
            check_gpu(artifact, search_params)
        memory = plan_memory(artifact, shard_replicas)
        sharing = plan_gpus(artifact, shard_replicas) if gpu else 1
        where = artifact.located, artifact.fingerprint
        plan = PoolPlan(
            *where, shard_replicas, threads, gpu, search_params, neighbours=1, sharing=sharing, detached=bool(name) and detached
        )
        plan, fits = _fitting(artifact, memory, plan)
        if name:
            return cls._start_named(name, plan, memory.actor_bytes, idle_timeout, fits)
        actors = [[start_actor(plan, shard, size) for _ in range(shard_replicas)] for shard, size in enumerate(memory.actor_bytes)]
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
    def _start_named(cls, name: str, plan: PoolPlan, actor_bytes: list[int], idle_timeout: float, fits: bool) -> SearchPool:
        try:
            controller = start_controller(name, uuid.uuid4().hex[:8], plan, actor_bytes, idle_timeout)
        except ValueError as error:
            what = f"there is a search pool of the name {name!r} already"
            raise InputError(what, "name", "connect to it, close it, or take another name") from error
        try:
            if not fits:
                await_nodes(actor_bytes, lambda: sum(actor["state"] == "loading" for actor in asked(name, "status")["actors"]))
            return cls(versions_of(name, False), name, controller=controller)
        except BaseException:  # an interrupt too: what was started would stay, under its name
            with suppress(InputError):
                close_pool(name)
            raise

    @classmethod
    def connect(cls, name: str, pinned: bool = False) -> SearchPool:
        """The pool that was started under `name`, perhaps by another job; it continues after `with`, `close` ends it.

        Waits until each shard has a loaded actor. Raises InputError if there is no such pool. With `pinned`, a search raises it too
        after the pool has switched to another index, so that all answers come from one.
        """
        check_name(name)
        ensure_ray()
        return cls(versions_of(name, pinned), name, ends=False)

    def refuse_other_index(self, folder: str) -> None:
        """InputError if the pool answers from another index than the one in `folder`."""
        if Artifact.open(folder, "index").fingerprint != self.plan.fingerprint:
            what = f"the pool {self.name!r} answers from another index, {self.plan.index}"
            raise InputError(what, folder, f"give that one, or switch the pool to this one with `raydense pool swap --name {self.name}`")

    def swap(
        self,
        index: str | Path | Artifact,
        shard_replicas: int | None = None,
        search_params: str | None = None,
        patience: float = _PATIENCE_S,
    ) -> None:
        """Switch a pool with a name to another index while it serves: no call fails, and none is answered by two indexes.

        The new actors start next to the old ones, and take over when all are loaded; after `patience` seconds, one of each shard
        is enough. `shard_replicas` and `search_params` stay as they are unless given. Raises InputError if memory is short next to the
        old actors, an actor cannot load, or the index takes other queries than the old one; the pool then stays as it is.
        """
        artifact = index if isinstance(index, Artifact) else Artifact.open(index, "index")
        version = self._versions.renew(self._versions.current())
        _check_alike(version.index, artifact)
        given = version.plan.search_params if search_params is None else search_params
        kind_of(artifact).check_params(given)
        copies = shard_replicas or version.plan.replicas
        plan = replace(version.plan, index=artifact.located, fingerprint=artifact.fingerprint, replicas=copies, search_params=given)
        if plan.gpu:
            check_gpu(artifact, given)
            plan = replace(plan, sharing=plan_gpus(artifact, copies, staying=True))
        staying = plan_memory(version.index, version.plan.replicas)
        memory = plan_memory(artifact, copies)
        plan, _ = _fitting(artifact, memory, plan, staying.actor_bytes * staying.replicas)
        late = f"search: waits for the actors of {artifact.place} to start and load, next to those that serve now"
        refusal: str = asked(self._required_name(), "swap", version.number, plan, memory.actor_bytes, uuid.uuid4().hex, patience, late=late)
        if refusal:
            now = self._versions.renew(version).plan.index
            raise InputError(f"could not switch to it ({refusal})", artifact.place, f"the pool {self.name!r} still answers from {now}")
        self._versions.renew(self._versions.current())

    def status(self) -> dict[str, Any]:
        """A pool with a name as JSON: index, fingerprint, version, seconds without a call, and the node and state of each actor."""
        return pool_status(self._required_name())

    def _required_name(self) -> str:
        if not self.name:
            raise InputError("the pool has no name", "name", "give one to SearchPool.start")
        return self.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ends:
            self.close()

    def close(self) -> None:
        """End the actors, also those of a pool that this caller only connected to."""
        if self.name:
            close_pool(self.name)
            return
        for actor in (a for replicas in self.actors for a in replicas):
            ray.kill(actor, no_restart=True)

    @property
    def plan(self) -> PoolPlan:
        """What the pool was started with, or switched to, as far as this caller knows."""
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
        rows int64 of the same shape; -inf and -1 for none. All come from one version of the index; `answer` also returns which.
        """
        return self.answer(queries, k).hits

    def answer(self, queries: Queries, k: int) -> Answer:
        """As `search`, with the fingerprint of the index that answered: blocks that an earlier version answered are searched again."""
        blocks = list(_cut(queries, _BLOCK))
        parts = list(self.answers(blocks, k))
        if not parts:
            version = self._versions.current()
            return Answer(queries, no_hits(0, min(k, version.index.rows)), version.plan.fingerprint, version.number)
        parts = of_one_version(parts, lambda queries: next(self.answers([queries], k)))
        scores, rows = (np.concatenate([part.hits[i] for part in parts]) for i in (0, 1))
        return replace(parts[-1], queries=queries, hits=(scores, rows))

    def answers(self, blocks: Iterable[Queries], k: int) -> Iterator[Answer]:
        """As `answer`, over a stream of blocks of queries of any length: each block with its hits, in order.

        At most two blocks per replica are taken from the stream before their hits are returned: that bounds the memory. Each block
        comes from one version of the index.
        """
        k = check_k(k)
        self._report_cpu(k)
        waiting: deque[Block] = deque()
        for queries in blocks:
            self._blocks += 1
            waiting.append(Block(self._versions, queries, k, self._blocks))
            if len(waiting) >= 2 * self.plan.replicas:
                yield waiting.popleft().answer()
        for block in waiting:
            yield block.answer()

    def _report_cpu(self, k: int) -> None:
        """Say once that a pool on GPUs searches so many hits on the CPU."""
        shards = self.index.summary["shards"]
        most = min(k, max(stop - start for start, stop in shards))
        if self.plan.gpu and not self._reported and takes_cpu(most, len(shards), kind_of(self.index).exact):
            self._reported = True
            say(f"search: k is {k:,}, and FAISS finds at most {LARGEST_K:,} hits of a shard on a GPU: the CPUs search")


def check_together(indexes: Sequence[Artifact], replicas: int, gpu: bool) -> None:
    """InputError if the nodes have not the memory for a pool of each index at once, and the cluster adds none.

    Each pool is checked when it starts, too, but Ray may not report yet what the one before it has reserved: its actors would wait for ever.
    """
    ensure_ray()
    memory = MemoryPlan([size for index in indexes for size in plan_memory(index, 1).actor_bytes], replicas, len(indexes))
    try:
        _check_memory(memory, _memory_of([*shard_nodes(False), *shard_nodes(gpu)]), None, ())
    except InputError:
        if not autoscales():
            raise


def _fitting(index: Artifact, memory: MemoryPlan, plan: PoolPlan, staying: Sequence[int] = ()) -> tuple[PoolPlan, bool]:
    """The plan with the number of actors that share a node, and whether the present nodes have memory for them next to those `staying`.

    InputError if they do not, or others have reserved it, and the cluster adds no nodes.
    """
    nodes = _memory_of(shard_nodes(plan.gpu))
    announce(memory, index, plan.search_params)
    actors = len(memory.actor_bytes) * memory.replicas
    try:
        _check_memory(memory, nodes, index.summary["factory"], staying)
    except InputError:
        if not autoscales():
            raise
        say("search: that is more than the present nodes have free: waiting for others")
        return replace(plan, neighbours=max(1, min(actors, max(nodes.values(), default=0) // max(memory.actor_bytes)))), False
    apart = nodes_apart(plan.gpu) if plan.detached else []
    shared = [size for size in _memory_of(apart).values() if size >= max(memory.actor_bytes)] or list(nodes.values())
    return replace(plan, neighbours=min(-(-actors // len(shared)), max(shared) // min(memory.actor_bytes))), True


def _memory_of(nodes: Iterable[dict[str, Any]]) -> dict[str, int]:
    return {node["NodeID"]: int(node["Resources"].get("memory", 0)) for node in nodes}


def _check_memory(memory: MemoryPlan, nodes: dict[str, int], factory: str | None, staying: Sequence[int]) -> None:
    """InputError if the plan exceeds the memory of the nodes, or what is unreserved of it for longer than ended actors take to release theirs."""
    memory.check(list(nodes.values()), factory, staying)
    end = time.monotonic() + (_RETIRED_S if staying else _RELEASE_S)
    while True:
        unreserved = free_by_node()
        free = [int(unreserved.get(node, {}).get("memory", 0)) for node in nodes]
        try:
            return memory.check(list(nodes.values()), factory, staying, free)
        except InputError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def _check_alike(old: Artifact, new: Artifact) -> None:
    """InputError unless the new index takes the same queries as the old one, since callers do not change."""
    for key in ("kind", "dimension"):
        if old.summary.get(key) != new.summary.get(key):
            what = f"its {key} is {new.summary.get(key)}, the pool's is {old.summary.get(key)}"
            raise InputError(what, new.place, "start another pool for it: callers of this one send other queries")


def _cut(queries: Queries, block: int) -> Iterator[Queries]:
    return (queries[at : at + block] for at in range(0, len(queries), block))
