"""Which nodes take shard actors, and what an actor claims of one."""

from __future__ import annotations

from typing import Any

import ray

from raydense.retrieval.gpu import share

_SLIVER = 0.001


def shard_nodes(gpu: bool) -> list[dict[str, Any]]:
    """The nodes that take shard actors, as Ray lists them."""
    return [node for node in ray.nodes() if _takes(node, gpu)]


def _takes(node: dict[str, Any], gpu: bool) -> bool:
    """Whether it is alive and has CPUs (a head without takes no work), or GPUs where the pool needs them."""
    return node["Alive"] and node["Resources"].get("GPU" if gpu else "CPU", 0) > 0


def claims(gpu: bool, nodes: list[dict[str, Any]], sharing: int = 1) -> dict[str, Any]:
    """The CPUs, and the part of a GPU that `sharing` actors have, that an actor claims: a sliver of a CPU if a node has none, so that the actor avoids that node.

    Otherwise no CPU: whatever has claimed all CPUs may itself wait for the pool.
    """
    kept_free = any(node["Alive"] and not _takes(node, False) for node in nodes)
    return {"num_cpus": _SLIVER if kept_free and not gpu else 0, "num_gpus": share(sharing) if gpu else 0}
