"""Whether the processes of an app hold its indexes themselves: then a search calls no other process."""

from __future__ import annotations

from raydense.errors import InputError
from raydense.retrieval.memory import MemoryPlan, plan_memory
from raydense.runtime.ray_internals import free_by_node
from raydense.serving.processes import nodes_for
from raydense.serving.settings import ServeSettings
from raydense.storage import Artifact, named


def held_bytes(settings: ServeSettings) -> int:
    """The memory that each process needs for the indexes; 0 where a pool answers.

    A pool answers where it is asked for, by its name or by `shard_replicas`, and where the nodes that can take a process do not have the memory for
    twice as many: while settings change, the new ones hold theirs before the old ones end.
    """
    if settings.pool or settings.shard_replicas > 1:
        return 0
    needed = sum(plan_memory(Artifact.open(named(item)[1], "index"), 1).total for item in settings.index)
    nodes = {node["NodeID"]: int(node["Resources"].get("memory", 0)) for node in nodes_for(settings.gpus_per_replica)}
    free = [int(there.get("memory", 0)) for node, there in free_by_node().items() if node in nodes]
    try:
        MemoryPlan([needed], 2 * settings.replicas).check(list(nodes.values()), None)
        MemoryPlan([needed], settings.replicas).check(list(nodes.values()), None, free=free)
    except InputError:
        return 0
    return needed
