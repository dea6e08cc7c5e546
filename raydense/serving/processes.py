"""The processes of an app on the cluster's nodes: which can take one, whether these can have all, and why one does not start."""

from __future__ import annotations

import re
from typing import Any

from raydense.errors import InputError
from raydense.retrieval.nodes import shard_nodes
from raydense.runtime.ray_internals import actors_of
from raydense.runtime.session import autoscales
from raydense.serving.settings import ServeSettings


def nodes_for(gpus: float) -> list[dict[str, Any]]:
    """The nodes that can take a process, which claims a CPU and so much of a GPU, as Ray lists them."""
    return [node for node in shard_nodes(False) if node["Resources"]["CPU"] >= 1 and node["Resources"].get("GPU", 0) >= gpus]


def check_processes(settings: ServeSettings) -> None:
    """InputError if the nodes have not the CPUs and GPUs of the app's processes, and the cluster adds none: Ray Serve would wait for ever."""
    wanted = {"replicas": (settings.replicas, settings.gpus_per_replica)}
    if settings.reranker:
        wanted["reranker_replicas"] = settings.reranker_replicas, settings.gpus_per_reranker
    try:
        _check(wanted)
    except InputError:
        if not autoscales():
            raise


def _check(wanted: dict[str, tuple[int, float]]) -> None:
    """InputError unless a node has the CPU and GPUs of one process, and all nodes those of all; `wanted` are the processes and the GPUs of each."""
    for setting, (_, gpus) in wanted.items():
        if not nodes_for(gpus):
            needs = f"a CPU and {gpus:g} GPU on one node" if gpus else "a CPU"
            raise InputError(f"a process needs {needs}, and there is none", setting, "give fewer GPUs" if gpus else "add a node")
    needed = {"CPU": sum(count for count, _ in wanted.values()), "GPU": sum(count * gpus for count, gpus in wanted.values())}
    for resource, amount in needed.items():
        there = sum(node["Resources"].get(resource, 0) for node in shard_nodes(False))
        if round(amount - there, 4) > 0:  # Ray counts to four places
            what = f"the processes need {amount:g} {resource}s, and the nodes have {there:g}"
            raise InputError(what, " and ".join(wanted), "give fewer, or more nodes")


def any_unplaced(app: str) -> bool:
    """Whether a process of the app has no place on a node yet."""
    mine = [one for one in actors_of() if one["ActorClassName"].startswith(f"ServeReplica:{app}:")]
    return any(one["State"] != "DEAD" and not one["Address"]["Port"] for one in mine)


def start_fault(report: str) -> str:
    """What kept a process from its start, in a line: of the traceback in Ray Serve's report the InputError, else the end."""
    found = re.findall(r"raydense\.errors\.\w+: (.+)", report)
    return found[-1] if found else report.strip().splitlines()[-1]
