"""Plans the memory of a search pool before anything is loaded, and refuses what the cluster's nodes cannot hold."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from raydense.errors import InputError
from raydense.retrieval.kind import kind_of
from raydense.runtime.progress import say, size
from raydense.storage import Artifact

PROCESS_BYTES = 250 * 2**20
_BUFFER_BYTES = 128 * 2**20  # a block of decoded vectors (64 MiB), products of queries and vectors, hits


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of one actor of each shard of one index, or of several: process and buffers, and the shard's files."""

    actor_bytes: list[int]
    replicas: int
    indexes: int = 1

    @property
    def total(self) -> int:
        return sum(self.actor_bytes) * self.replicas

    def __str__(self) -> str:
        actors = len(self.actor_bytes) * self.replicas
        return f"{actors} actors ({len(self.actor_bytes)} shards x {self.replicas}), at most {size(max(self.actor_bytes))} each, {size(self.total)} in all"

    def leaves_room(self, node_bytes: list[int]) -> bool:
        """Whether nodes of this memory hold the actors three times: a pool that serves, and next to it what builds and loads another index like its own."""
        return _placed(3 * self.replicas * self.actor_bytes, node_bytes)

    def check(self, node_bytes: list[int], factory: str | None, staying: Sequence[int] = (), free: list[int] | None = None) -> None:
        """Place every actor on the node with the most free memory; InputError if one fits nowhere.

        `node_bytes` is each node's memory, `staying` the memory of each actor that stays while these load; `free`, if given, is the
        unreserved memory of each node, where the actors that stay count as reserved.
        """
        own = self.actor_bytes * self.replicas
        if not _placed([*own, *staying], node_bytes):
            have, fixes = "", ["give more shards or nodes"]
        elif free is not None and not _placed(own, free):
            held = max(0, sum(node_bytes) - sum(free) - sum(staying))
            have, fixes = (
                f", of which others have reserved {size(held)}",
                ["close a pool that is no longer needed", "give more shards or nodes"],
            )
        else:
            return
        fixes += ["factory SQfp16"] if factory == "Flat" else []
        fixes += ["fewer replicas"] if self.replicas > 1 else []
        fixes += ["search each alone and `fuse` the runs"] if self.indexes > 1 else []
        have = f"{len(node_bytes)} nodes with {size(sum(node_bytes))}{have}"
        stays = f" next to {size(sum(staying))} of the current actors" if staying else ""
        needs = "the index needs" if self.indexes == 1 else f"the {self.indexes} indexes together need"
        raise InputError(f"{needs} {self}{stays}, and there are {have}", "search", ", ".join(fixes))


def _placed(sizes: Sequence[int], node_bytes: Sequence[int]) -> bool:
    free = [-node for node in node_bytes]
    heapq.heapify(free)
    for needed in sorted(sizes, reverse=True):
        if not free or -free[0] < needed:
            return False
        heapq.heapreplace(free, free[0] + needed)
    return True


def plan_memory(index: Artifact, replicas: int) -> MemoryPlan:
    """The memory of each shard's actor, from the sizes of its files; a mapped file counts in full, since a search reads all of it."""
    sizes = []
    for shard in range(len(index.summary["shards"])):
        files = sum(f.bytes for f in index.files if f.path.startswith(f"shard-{shard:05d}."))
        sizes.append(files + PROCESS_BYTES + _BUFFER_BYTES)
    return MemoryPlan(sizes, replicas)


def announce(plan: MemoryPlan, index: Artifact, search_params: str) -> None:
    """Log the plan, and what the index is searched with."""
    used = ", ".join([f"{index.rows:,} passages", *filter(None, [kind_of(index).params(search_params)]), str(plan)])
    say(f"search: {index.summary['kind']} {index.summary['factory'] or ''} {used}".replace("  ", " "))
