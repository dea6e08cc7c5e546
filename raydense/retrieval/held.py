"""An index that this process holds: the hits of a search pool, without a call of another process."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from raydense.retrieval.asking import Answer, Block
from raydense.retrieval.kind import kind_of
from raydense.retrieval.merge import Hits
from raydense.retrieval.shard_actor import PoolPlan
from raydense.retrieval.versions import Queries, Table, Version, Versions, check_k
from raydense.runtime.session import physical_cpus
from raydense.storage import Artifact


class _Given:
    """What a shard of this process gave."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def answer(self) -> Any:
        return self._given


class _HeldBlock(Block):
    """A block of queries that this process searches itself, one shard after another: each uses all threads."""

    def _ask(self, shard: int, method: str, *args: Any) -> _Given:
        searched = self.version.actors[shard][0]
        if method == "settle":
            return _Given(getattr(searched, args[0])(*args[1:]))
        how, _, *queries = args
        return _Given(searched.nearest(*queries, *how))

    def _put(self, part: NDArray[Any]) -> Any:
        return part


class HeldIndex:
    """All shards of an index, opened in this process: its hits are those of `SearchPool`. Safe to use from several threads.

    `threads` of a search are by default the machine's cores. InputError if the index does not take the search parameters. Nothing is
    reserved in Ray, which need not run: whoever holds a large index sees to its memory (`memory.plan_memory` says how much).
    """

    def __init__(self, index: Artifact, threads: int = 0, search_params: str = "") -> None:
        kind = kind_of(index)
        kind.check_params(search_params)
        self.index = index
        threads = threads or physical_cpus()
        plan = PoolPlan(index.located, index.fingerprint, 1, threads, gpu=False, search_params=search_params, neighbours=1)
        shards = [[kind.open_shard(number, threads, search_params)] for number in range(len(index.summary["shards"]))]
        self._versions = Versions(Version(Table(1, plan, shards)))

    def search(self, queries: Queries, k: int) -> Hits:
        """As `SearchPool.search`: scores float32 and rows int64 of the best k, by score falling, then row rising; -inf and -1 for none."""
        return self.answer(queries, k).hits

    def answer(self, queries: Queries, k: int) -> Answer:
        """As `search`, with the fingerprint of the index."""
        return _HeldBlock(self._versions, queries, check_k(k), 0).answer()
