"""A pool of shard actors: blocks of queries are fanned out to every shard, and the hits merged exactly.

One pool class stands before FAISS and BM25. An actor gets paths, loads in its constructor, and is restarted with its calls
retried when it dies. A pool with a name outlives its job: another one connects to it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from raydense.data.artifact import Artifact
from raydense.errors import InputError
from raydense.ray_session import ensure_ray, physical_cpus
from raydense.search.memory import announce, plan_memory
from raydense.search.merge import (
    MARGIN,
    Hits,
    Rows,
    Scores,
    contenders,
    first_share,
    merge_hits,
    no_hits,
    order_hits,
    rounding_bound,
    widened,
)

NAMESPACE = "raydense"
_BLOCK = 2_048
Queries = Scores | list[str]


@dataclass(frozen=True)
class PoolPlan:
    """What every actor of a pool knows of it, so that a name is enough to connect."""

    index: str
    replicas: int
    threads: int
    gpu: bool
    search_params: str
    neighbours: int


class ShardActor:
    """Holds one shard: `search` asks it, and `settle` asks what a block's ties still need while the next block is searched."""

    def __init__(self, plan: PoolPlan, shard: int) -> None:
        self.plan = plan
        index = Artifact.open(plan.index, "index")
        start, stop = index.summary["shards"][shard]
        if index.summary["kind"] == "bm25":
            from raydense.search.bm25_shard import Bm25Shard

            self.shard: Any = Bm25Shard(str(index.path), shard, start, stop)
        else:
            from raydense.search.faiss_shard import FaissShard

            threads = plan.threads or max(1, physical_cpus() // plan.neighbours)
            self.shard = FaissShard(str(index.path / f"shard-{shard:05d}.faiss"), start, threads, plan.gpu, plan.search_params)

    def search(self, *args: Any) -> Hits:
        return self.shard.nearest(*args)

    @ray.method(concurrency_group="settle")
    def settle(self, method: str, *args: Any) -> Any:
        return getattr(self.shard, method)(*args)

    def describe(self) -> tuple[dict[str, Any], int]:
        """The pool's plan, and the id of the process that holds this shard."""
        return asdict(self.plan), os.getpid()


class SearchPool:
    """`with SearchPool.start(index) as pool: scores, rows = pool.search(queries, k)`."""

    def __init__(self, plan: PoolPlan, actors: list[list[Any]]) -> None:
        self.plan, self.actors = plan, actors
        self.index = Artifact.open(plan.index, "index")
        self._turn = 0
        self._shards: list[tuple[int, int]] = [(a, b) for a, b in self.index.summary["shards"]]
        self._largest_norm: float | None = self.index.summary.get("largest_norm")
        self._is_bm25 = self.index.summary["kind"] == "bm25"

    @classmethod
    def start(
        cls,
        index: str | Path | Artifact,
        replicas: int = 1,
        name: str | None = None,
        threads: int = 0,
        gpu: bool = False,
        search_params: str = "",
    ) -> SearchPool:
        """Start `replicas` actors of every shard; returns at once, while they load.

        With a `name` the actors are detached: `connect(name)` finds them from another job, until `close`. `threads` of an
        actor: 0 shares a machine's cores between its actors. Raises InputError when the memory plan does not fit the
        nodes, search parameters do not suit the index, GPUs are asked for and not there, or the name is taken.
        """
        artifact = index if isinstance(index, Artifact) else Artifact.open(index, "index")
        _check_search_params(artifact, search_params)
        ensure_ray()
        nodes = [n for n in ray.nodes() if n["Alive"]]
        if gpu:
            _check_gpu(artifact)
        memory = plan_memory(artifact, replicas)
        announce(memory, artifact)
        memory.check([int(n["Resources"].get("memory", 0)) for n in nodes], artifact.summary["factory"])
        actors = len(memory.actor_bytes) * replicas
        plan = PoolPlan(artifact.located, replicas, threads, gpu, search_params, -(-actors // len(nodes)))
        return cls(plan, [[_start_actor(plan, s, r, name, size) for r in range(replicas)] for s, size in enumerate(memory.actor_bytes)])

    @classmethod
    def connect(cls, name: str) -> SearchPool:
        """The pool that was started under `name`, perhaps by another job; InputError if there is none."""
        ensure_ray()
        try:
            described: dict[str, Any]
            described, _ = ray.get(ray.get_actor(_actor_name(name, 0, 0), namespace=NAMESPACE).describe.remote())
            plan = PoolPlan(**described)
            shards = range(len(Artifact.open(plan.index, "index").summary["shards"]))
            actors = [[ray.get_actor(_actor_name(name, s, r), namespace=NAMESPACE) for r in range(plan.replicas)] for s in shards]
        except ValueError:
            raise InputError(f"no search pool of the name {name!r}", "name", "start it with SearchPool.start(index, name=...)") from None
        return cls(plan, actors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, also those of a pool that was connected to."""
        for actor in (a for replicas in self.actors for a in replicas):
            ray.kill(actor, no_restart=True)

    def search(self, queries: Queries, k: int) -> Hits:
        """The best k passages of each query, by score falling, then row rising.

        `queries` are float32 [n, d] for FAISS, a list of strings for BM25. Returns scores float32 [n, k] and rows int64
        [n, k]; -inf and -1 where there is none.
        """
        parts = [hits for _, hits in self.search_blocks(_cut(queries, _BLOCK), k)]
        return (np.concatenate([s for s, _ in parts]), np.concatenate([r for _, r in parts])) if parts else no_hits(0, k)

    def search_blocks(self, blocks: Iterable[Queries], k: int) -> Iterator[tuple[Queries, Hits]]:
        """As `search`, over a stream of blocks of queries of any length: each block with its hits, in order.

        At most two blocks per replica are taken from the stream and not yet given back: that is what bounds the memory.
        """
        if k < 1:
            raise InputError(f"k is {k}", "k", "give at least 1")
        waiting: deque[_Block] = deque()
        for queries in blocks:
            waiting.append(_Block(self, queries, k))
            if len(waiting) >= 2 * self.plan.replicas:
                block = waiting.popleft()
                yield block.queries, block.hits()
        for block in waiting:
            yield block.queries, block.hits()

    def next_replicas(self) -> list[Any]:
        """One actor of each shard; blocks go round the replicas."""
        self._turn += 1
        return [replicas[self._turn % self.plan.replicas] for replicas in self.actors]

    def prepare(self, queries: Queries) -> list[Any]:
        """The queries as the shards take them, checked: vectors, or the ids of BM25's words and where each query starts."""
        if self._is_bm25:
            if not isinstance(queries, list):
                raise InputError("a BM25 index is searched with a list of strings", "queries")
            return list(self._words.query_ids(queries, self._vocabulary))
        if not isinstance(queries, np.ndarray) or queries.ndim != 2 or queries.shape[1] != self.index.summary["dimension"]:
            raise InputError(f"the index is searched with vectors [n, {self.index.summary['dimension']}]", "queries")
        return [np.ascontiguousarray(queries, dtype=np.float32)]

    @property
    def largest_norm(self) -> float | None:
        """The largest norm of a vector in an exact index, whose scores are then made exact; None for the others."""
        return self._largest_norm

    @property
    def shard_rows(self) -> list[int]:
        """The number of rows of each shard."""
        return [stop - start for start, stop in self._shards]

    @cached_property
    def _words(self) -> Any:
        from raydense.search.words import Words

        return Words(self.index.summary["stemmer"], self.index.summary["stopwords"])

    @cached_property
    def _vocabulary(self) -> pa.ChunkedArray:
        return pa.ipc.open_file(pa.memory_map(str(self.index.path / "vocabulary.arrow"))).read_all()["word"]


class _Block:
    """One block of queries on its way through the shards."""

    def __init__(self, pool: SearchPool, queries: Queries, k: int) -> None:
        self.pool, self.queries, self.k = pool, queries, k
        self.actors = pool.next_replicas()
        self.prepared = pool.prepare(queries)
        self.refs = [ray.put(part) for part in self.prepared]
        self.asked = k if pool.largest_norm is None else first_share(k, len(self.actors))
        self.found = [actor.search.remote(*self.refs, self.asked) for actor in self.actors]

    def _settle(self, method: str, *args: Any) -> list[Any]:
        return ray.get([actor.settle.remote(method, *args) for actor in self.actors])

    def hits(self) -> Hits:
        """The merged best k; for an exact index with scores that depend on nothing but query and passage."""
        parts: list[Hits] = ray.get(self.found)
        if self.pool.largest_norm is None:
            return merge_hits(parts, self.k)
        queries = self.prepared[0]
        bound = rounding_bound(queries, self.pool.largest_norm)
        rows, open_ = self._contenders(parts, bound)
        if open_.any() and self.asked < self.k + MARGIN:
            rows, open_ = self._contenders(self._widen(parts, open_), bound)
        scores = np.maximum.reduce(self._settle("rescore", self.refs[0], ray.put(rows)))
        best = order_hits(scores, rows, self.k)
        unsettled = open_.any(axis=0)
        if unsettled.any():
            exact = self._settle("exact", ray.put(queries[unsettled]), self.k, ray.put(bound[unsettled]))
            best[0][unsettled], best[1][unsettled] = merge_hits(exact, self.k)
        return best

    def _contenders(self, parts: list[Hits], bound: Scores) -> tuple[Rows, NDArray[np.bool_]]:
        complete = [p[0].shape[1] >= rows for p, rows in zip(parts, self.pool.shard_rows, strict=True)]
        return contenders(parts, complete, self.k, bound)

    def _widen(self, parts: list[Hits], open_: NDArray[np.bool_]) -> list[Hits]:
        """The hits with k + MARGIN of each shard for the queries that are open there ([shards, n])."""
        again = {shard: np.flatnonzero(line) for shard, line in enumerate(open_) if line.any()}
        calls = [self.actors[s].settle.remote("nearest", self.prepared[0][which], self.k + MARGIN) for s, which in again.items()]
        wider = dict(zip(again, ray.get(calls), strict=True))
        return [widened(part, again[s], wider[s]) if s in again else part for s, part in enumerate(parts)]


def _cut(queries: Queries, block: int) -> Iterator[Queries]:
    return (queries[at : at + block] for at in range(0, len(queries), block))


def _actor_name(name: str, shard: int, replica: int) -> str:
    return f"{name}/shard-{shard}/replica-{replica}"


def _start_actor(plan: PoolPlan, shard: int, replica: int, name: str | None, memory: int) -> Any:
    options: dict[str, Any] = {
        "num_cpus": 0,
        "num_gpus": 1 if plan.gpu else 0,
        "memory": memory,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": "SPREAD",
        "concurrency_groups": {"settle": 1},
    }
    if name:
        options |= {"name": _actor_name(name, shard, replica), "namespace": NAMESPACE, "lifetime": "detached"}
    try:
        return ray.remote(**options)(ShardActor).remote(plan, shard)
    except ValueError as error:
        raise InputError(
            f"there is a search pool of the name {name!r} already", "name", "connect to it, close it, or take another name"
        ) from error


def _check_gpu(index: Artifact) -> None:
    if index.summary["kind"] == "bm25":
        raise InputError("BM25 does not use GPUs", "gpu", "leave it out")
    from raydense.search.faiss_shard import has_gpu_support

    if not has_gpu_support():
        raise InputError("this FAISS has no GPU support", "gpu", "install faiss-gpu instead of faiss-cpu, or leave gpu out")
    if ray.cluster_resources().get("GPU", 0) < 1:
        raise InputError("the cluster has no GPU", "gpu", "leave it out")


def _check_search_params(index: Artifact, search_params: str) -> None:
    if not search_params:
        return
    if index.summary["kind"] == "bm25":
        raise InputError("BM25 has no search parameters", "search_params", "leave them out")
    import faiss

    from raydense.search.faiss_shard import set_search_params

    set_search_params(faiss.read_index(str(index.path / "empty.faiss")), search_params)
