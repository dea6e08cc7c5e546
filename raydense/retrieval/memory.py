"""Plans the memory of a search pool before anything is loaded, and refuses what the cluster's nodes cannot hold."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from raydense.errors import InputError
from raydense.runtime.progress import say, size
from raydense.storage import Artifact

PROCESS_BYTES = 250 * 2**20
_BUFFER_BYTES = 64 * 2**20


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of one actor of each shard: process and buffers, and the shard's files."""

    actor_bytes: list[int]
    replicas: int

    @property
    def total(self) -> int:
        return sum(self.actor_bytes) * self.replicas

    def __str__(self) -> str:
        actors = len(self.actor_bytes) * self.replicas
        return f"{actors} actors ({len(self.actor_bytes)} shards x {self.replicas}), at most {size(max(self.actor_bytes))} each, {size(self.total)} in all"

    def check(self, node_bytes: list[int], factory: str | None, beside: Sequence[int] = (), free: list[int] | None = None) -> None:
        """Place every actor on the node with most room left; InputError if one finds none.

        `node_bytes` is each node's memory, `beside` what each actor holds that stays while these load; `free`, where given, is what
        nobody has reserved of each node, those that stay included.
        """
        own = self.actor_bytes * self.replicas
        if not _placed([*own, *beside], node_bytes):
            have, fixes = "", ["give more shards or nodes"]
        elif free is not None and not _placed(own, free):
            held = max(0, sum(node_bytes) - sum(free) - sum(beside))
            have, fixes = f", of which others have reserved {size(held)}", ["close a pool that nobody needs", "give more shards or nodes"]
        else:
            return
        fixes += ["factory SQfp16"] if factory == "Flat" else []
        fixes += ["fewer replicas"] if self.replicas > 1 else []
        have = f"{len(node_bytes)} nodes with {size(sum(node_bytes))}{have}"
        stays = f" beside {size(sum(beside))} of the actors that serve now" if beside else ""
        raise InputError(f"the index needs {self}{stays}, and there are {have}", "search", ", ".join(fixes))


def _placed(sizes: Sequence[int], node_bytes: Sequence[int]) -> bool:
    room = [-free for free in node_bytes]
    heapq.heapify(room)
    for needed in sorted(sizes, reverse=True):
        if not room or -room[0] < needed:
            return False
        heapq.heapreplace(room, room[0] + needed)
    return True


def plan_memory(index: Artifact, replicas: int) -> MemoryPlan:
    """What each shard's actor will hold, from the sizes of its files; a mapped file counts whole, since a search reads it all."""
    sizes = []
    for shard in range(len(index.summary["shards"])):
        files = sum(f.bytes for f in index.files if f.path.startswith(f"shard-{shard:05d}."))
        sizes.append(files + PROCESS_BYTES + _BUFFER_BYTES)
    return MemoryPlan(sizes, replicas)


def announce(plan: MemoryPlan, index: Artifact) -> None:
    """Print the plan."""
    say(f"search: {index.summary['kind']} {index.summary['factory'] or ''} {index.rows:,} passages, {plan}".replace("  ", " "))
