"""Runs Ray tasks, as many at once as their CPUs and memory allow, and logs if none can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any
from uuid import uuid4

import ray

from raydense.errors import InputError
from raydense.runtime.progress import size
from raydense.runtime.ray_internals import kv_delete, kv_get, kv_put
from raydense.runtime.session import autoscales, joins_cluster
from raydense.runtime.waiting import Waiting

_ENDING_S = 30.0


def shard_ranges(rows: int, shards: int) -> list[tuple[int, int]]:
    """`rows` cut into `shards` ranges [start, stop) whose lengths differ by at most one."""
    cuts = [rows * i // shards for i in range(shards + 1)]
    return list(pairwise(cuts))


def run_tasks(
    stage: str, function: Callable[..., Any], calls: list[tuple[Any, ...]], at_once: int = 0, memory: int = 0, cpus: int = 1
) -> Iterator[Any]:
    """Call `function` with each tuple of arguments as a Ray task of `cpus`, for `stage`; yields results in the order of completion.

    At most `at_once` tasks are submitted; 0 means as many as the machine has CPUs, and on a cluster all. Each reserves `memory`
    bytes of its node, so that only as many run at once as memory allows. An error of a task is raised here, and ends the others.
    InputError if no node has so much memory, and the cluster adds none.
    """
    if calls and memory:
        refuse_small_nodes(stage, memory)
    limit = submitted_at_once(len(calls), at_once, joins_cluster(), int(ray.cluster_resources().get("CPU", 0)))
    task = ray.remote(num_cpus=cpus)(_begin).options(name=function.__name__, memory=memory or None)
    begun = f"raydense-begun-{uuid4().hex}"
    waiting = list(reversed(calls))
    running: list[Any] = []
    try:
        with Waiting(stage, lambda: kv_get(begun) is None):
            while waiting or running:
                while waiting and len(running) < limit:
                    running.append(task.remote(begun, function, *waiting.pop()))
                done, running = ray.wait(running, num_returns=1)
                yield ray.get(done[0])
    finally:
        _end(running)
        with suppress(Exception):  # the head is away: a few bytes stay there
            kv_delete(begun)


def _end(running: list[Any]) -> None:
    """Kill tasks that the end of a stage leaves, and wait for that: they would go on to write to an output that is removed, or made again."""
    if not (running and ray.is_initialized()):  # each call would start Ray
        return
    with suppress(Exception):  # the head is away, and its tasks with it
        for task in running:
            ray.cancel(task, force=True)
        ray.wait(running, num_returns=len(running), timeout=_ENDING_S)


def _begin(begun: str, function: Callable[..., Any], *arguments: Any) -> Any:
    kv_put(begun, b"1")
    return function(*arguments)


def submitted_at_once(calls: int, at_once: int, joined: bool, cpus: int) -> int:
    """The number of tasks submitted at once: a cluster grows only for waiting tasks, and its head may have no CPU itself."""
    return at_once or max(1, calls if joined else cpus)


def refuse_small_nodes(stage: str, memory: int) -> None:
    """InputError if a task that reserves `memory` bytes fits on no node of the cluster that has CPUs, and it adds none: it would wait for ever."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    largest = max((int(one.get("memory", 0)) for one in there if one.get("CPU", 0) > 0), default=0)
    if memory > largest and not autoscales():
        what = f"a task needs {size(memory)} of memory, and the largest node has {size(largest)} for tasks"
        smaller = {"index": "give more shards, or ", "compare": "give a smaller sample, or "}
        raise InputError(what, stage, f"{smaller.get(stage, 'give ')}a larger machine")
