"""The GPUs that a pool can have: those that nobody has claimed, and their memory, which each node is asked for."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydense.errors import InputError
from raydense.retrieval.gpu import actor_bytes, copy_bytes, sharing_of
from raydense.retrieval.kind import kind_of
from raydense.retrieval.nodes import shard_nodes
from raydense.runtime.progress import say, size
from raydense.runtime.ray_internals import free_by_node
from raydense.runtime.session import autoscales
from raydense.storage import Artifact

_UNKNOWN = 2**62
_RELEASE_S, _RETIRED_S = 10.0, 40.0  # until the GPUs of ended actors are free; and those of actors retired by a swap


def check_gpu(index: Artifact, search_params: str) -> None:
    """InputError if a pool cannot search `index` on GPUs: its kind, its parameters, this FAISS, or no GPU in the cluster."""
    kind_of(index).check_gpu(search_params)
    from raydense.retrieval.faiss_gpu import has_gpu_support

    if not has_gpu_support():
        raise InputError("this FAISS has no GPU support", "gpu", "install faiss-gpu instead of faiss-cpu, or leave gpu out")
    if ray.cluster_resources().get("GPU", 0) < 1 and not autoscales():
        raise InputError("the cluster has no GPU", "gpu", "leave it out")


def plan_gpus(index: Artifact, replicas: int, staying: bool = False) -> int:
    """How many actors of a pool of `index` share a GPU, so that all have a place; one each on a cluster that adds nodes. With `staying` it is to
    replace a pool that serves meanwhile, after one that may be ending.

    InputError if others have claimed all GPUs for longer than ended actors take to release theirs, or their memory is too small.
    """
    copies = [copy_bytes(index.summary, stop - start) for start, stop in index.summary["shards"]]
    if autoscales():
        return 1
    free = _unclaimed(len(copies) * replicas, staying)
    if not free:
        what = "this pool and others have claimed all GPUs of the cluster" if staying else "others have claimed all GPUs of the cluster"
        raise InputError(what, "gpu", "close a pool that is no longer needed, or start one without gpu")
    gpus = [memory for node, count in free.items() for memory in _memory_of(node, count)]
    sharing = sharing_of(copies, replicas, gpus, str(index.place))
    memory = f" of {size(min(gpus))}" if min(gpus) < _UNKNOWN else ", whose memory nvidia-smi does not report"
    say(f"search: on {len(gpus)} GPUs{memory}, {sharing} actors on each, at most {size(actor_bytes(max(copies), sharing))} an actor")
    return sharing


def _unclaimed(wanted: int, staying: bool) -> dict[str, int]:
    """The GPUs of each node that nobody has claimed; waits a while if they are fewer than `wanted`.

    Ray reports their sum: halves of two GPUs count as one, and the actor then waits for a whole one.
    """
    end = time.monotonic() + (_RETIRED_S if staying else _RELEASE_S)
    while True:
        unreserved = free_by_node()
        free = {node["NodeID"]: int(unreserved.get(node["NodeID"], {}).get("GPU", 0)) for node in shard_nodes(True)}
        there = sum(int(node["Resources"]["GPU"]) for node in shard_nodes(True))
        if sum(free.values()) >= min(wanted, there) or time.monotonic() > end:
            return {node: count for node, count in free.items() if count}
        time.sleep(0.2)


def _memory_of(node: str, count: int) -> list[int]:
    """The bytes of each of `count` GPUs of a node: those of its smallest, if it reports them."""
    options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
    reported: str = ray.get(ray.remote(**options)(_ask_driver).remote())
    return [min(parsed(reported), default=_UNKNOWN)] * count


def _ask_driver() -> str:
    """What nvidia-smi says of the memory of each GPU, in MiB; nothing where it is missing."""
    try:
        asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parsed(reported: str) -> list[int]:
    """The bytes of each GPU, from what nvidia-smi printed."""
    return [int(line) * 2**20 for line in reported.split() if line.isdigit()]
