"""The search pool of a training with refresh: started at its first generation, switched to the index of each later one, ended with it."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Self

from ray.exceptions import RayError

from raydense.errors import InputError
from raydense.retrieval.memory import plan_memory
from raydense.retrieval.nodes import shard_nodes
from raydense.retrieval.pool import SearchPool
from raydense.runtime.progress import say
from raydense.storage import Artifact


class TrainingPool:
    """`with TrainingPool() as pool: search(... pool=pool.on(index) ...)`; a pool with a name that ends with this job, even one that is killed.

    While it waits for the next index it claims neither a CPU nor a GPU, but memory: see `rest`.
    """

    def __init__(self) -> None:
        self._pool: SearchPool | None = None
        self._changing, self._ended = threading.Lock(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it, for a thread that is about to start one, too."""
        with self._changing:
            self._ended = True
        self.close()

    @property
    def name(self) -> str:
        """The name by which other jobs find it; empty while there is none."""
        return self._pool.name if self._pool else ""

    def on(self, index: Artifact, threads: int, search_params: str) -> str:
        """The name of the pool, which answers from `index` now. InputError if it does not fit on the cluster, or the training has ended."""
        if self._pool is None or not self._switched(self._pool, index):
            name = f"refresh-{uuid.uuid4().hex[:12]}"
            self._keep(SearchPool.start(index, name=name, threads=threads, search_params=search_params, detached=False))
        return self.name

    def _switched(self, pool: SearchPool, index: Artifact) -> bool:
        """Whether `pool` answers from `index` now; it ends where it could not switch."""
        try:
            pool.swap(index)
        except InputError as error:
            say(f"refresh: starts another search pool: {error}")
            self.close()
            return False
        return True

    def _keep(self, pool: SearchPool) -> None:
        with self._changing:
            if not self._ended:
                self._pool = pool
                return
        pool.close()
        raise InputError("the training has ended", "refresh", "run the same command again")

    def rest(self) -> None:
        """Until the next index: end the pool if its memory would be missing for building and loading that one.

        A task that builds an index waits until its memory is unreserved, and would wait for the pool for ever.
        """
        pool = self._pool
        if pool is None:
            return
        nodes = [int(node["Resources"].get("memory", 0)) for node in shard_nodes(False)]
        if not plan_memory(pool.index, 1).leaves_room(nodes):
            self.close()

    def close(self) -> None:
        """End the pool, if there is one."""
        with self._changing:
            pool, self._pool = self._pool, None
        if pool:
            with suppress(InputError, RayError):  # it was closed by somebody else, or ends with the job
                pool.close()
