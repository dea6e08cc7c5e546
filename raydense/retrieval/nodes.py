"""Which nodes take shard actors, and what an actor claims of one."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RpcError

from raydense.retrieval.gpu import share
from raydense.runtime.ray_internals import adds_nodes

_SLIVER = 0.001


def shard_nodes(gpu: bool) -> list[dict[str, Any]]:
    """The nodes that take shard actors, as Ray lists them."""
    return [node for node in ray.nodes() if _takes(node, gpu)]


def nodes_apart(gpu: bool) -> list[dict[str, Any]]:
    """The nodes without GPUs, if a pool without GPUs is to keep to these; else none.

    So on a cluster that grows and has both: an actor keeps its node up, one with GPUs, too, which were added for other work.
    """
    nodes = [] if gpu else shard_nodes(False)
    without = [node for node in nodes if not node["Resources"].get("GPU", 0)]
    return without if len(without) < len(nodes) and _grows() else []


def _grows() -> bool:
    try:
        return bool(adds_nodes())
    except RpcError:  # a busy cluster: the next look may succeed
        return False


def _takes(node: dict[str, Any], gpu: bool) -> bool:
    """Whether it is alive and has CPUs (a head without takes no work), or GPUs where the pool needs them."""
    return node["Alive"] and node["Resources"].get("GPU" if gpu else "CPU", 0) > 0


def claims(gpu: bool, nodes: list[dict[str, Any]], sharing: int = 1) -> dict[str, Any]:
    """The CPUs, and the part of a GPU that `sharing` actors have, that an actor claims: a sliver of a CPU if a node has none, so that the actor avoids that node.

    Otherwise no CPU: whatever has claimed all CPUs may itself wait for the pool.
    """
    kept_free = any(node["Alive"] and not _takes(node, False) for node in nodes)
    return {"num_cpus": _SLIVER if kept_free and not gpu else 0, "num_gpus": share(sharing) if gpu else 0}
