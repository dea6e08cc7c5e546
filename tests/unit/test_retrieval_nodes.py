"""Which nodes take shard actors, and what an actor claims so that Ray's scheduler thinks alike; without Ray."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RpcError

from raydense.retrieval import controller, pool
from raydense.retrieval import nodes as pool_nodes
from raydense.retrieval.memory import MemoryPlan
from raydense.retrieval.replicas import Replica
from raydense.retrieval.shard_actor import PoolPlan, start_actor


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"memory": 8.0 * 2**30, **resources}}


HEAD, WORKER, V100, LOST = node("head"), node("worker", CPU=4), node("v100", CPU=8, GPU=1), node("lost", alive=False)


@pytest.mark.parametrize(
    ("nodes", "gpu", "names", "claims"),
    [
        ([HEAD, WORKER, V100, LOST], False, ["worker", "v100"], (0.001, 0)),
        ([HEAD, WORKER, V100, LOST], True, ["v100"], (0, 1)),
        ([HEAD], False, [], (0.001, 0)),
        ([WORKER, V100, LOST], False, ["worker", "v100"], (0, 0)),  # all CPUs may be claimed by those that wait for the pool
    ],
)
def test_a_head_without_cpus_takes_no_shard(
    nodes: list[dict[str, Any]], gpu: bool, names: list[str], claims: tuple[float, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    assert [one["NodeID"] for one in pool_nodes.shard_nodes(gpu)] == names
    claimed = pool_nodes.claims(gpu, nodes)
    assert (claimed["num_cpus"], claimed["num_gpus"]) == claims


def test_actors_that_share_a_gpu_claim_a_part_of_it() -> None:
    assert pool_nodes.claims(True, [V100], 3)["num_gpus"] == 0.3333
    assert pool_nodes.claims(False, [V100], 3)["num_gpus"] == 0


@pytest.mark.parametrize(
    ("nodes", "gpu", "adds", "names"),
    [
        ([HEAD, WORKER, V100, LOST], False, True, ["worker"]),
        ([WORKER, V100], False, False, []),
        ([WORKER, V100], False, None, []),
        ([HEAD, V100], False, True, []),
        ([HEAD, WORKER], False, True, []),
        ([WORKER, V100], True, True, []),
    ],
)
def test_actors_on_the_cpu_are_kept_apart_from_gpus_that_a_cluster_added_for_others(
    nodes: list[dict[str, Any]], gpu: bool, adds: bool | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(pool_nodes, "adds_nodes", lambda: adds)
    assert [one["NodeID"] for one in pool_nodes.nodes_apart(gpu)] == names


def test_a_head_that_is_too_busy_to_say_whether_it_grows_stops_no_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> bool:
        raise RpcError("busy")

    monkeypatch.setattr("ray.nodes", lambda: [WORKER, V100])
    monkeypatch.setattr(pool_nodes, "adds_nodes", busy)
    assert pool_nodes.nodes_apart(False) == []


def started(monkeypatch: pytest.MonkeyPatch, plan: PoolPlan, node: str = "") -> Any:
    """How Ray is asked to place an actor of the pool."""
    options: dict[str, Any] = {}

    def remote(**given: Any) -> Any:
        options.update(given)
        return lambda actor: SimpleNamespace(remote=lambda *_: None)

    monkeypatch.setattr("ray.remote", remote)
    start_actor(plan, 0, 2**20, "one", node)
    return options["scheduling_strategy"]


PLAN = PoolPlan("index", "print", 1, 0, False, "", 1)


@pytest.mark.parametrize(
    ("plan", "adds", "strategy"),
    [
        (PLAN, True, "DEFAULT"),  # by which Ray avoids nodes with GPUs
        (PLAN, False, "SPREAD"),
        (replace(PLAN, detached=False), True, "SPREAD"),  # it ends with its job: a training's is where its workers are
        (replace(PLAN, gpu=True), True, "SPREAD"),
    ],
)
def test_a_pool_that_outlives_its_job_starts_apart_from_gpus(
    plan: PoolPlan, adds: bool, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", lambda: [HEAD, WORKER, V100])
    monkeypatch.setattr(pool_nodes, "adds_nodes", lambda: adds)
    assert started(monkeypatch, plan) == strategy
    assert started(monkeypatch, plan, "ab" * 28).node_id == "ab" * 28


@pytest.mark.parametrize(
    ("plan", "actors", "neighbours"),
    [
        (PLAN, 2, 2),  # both on the node without GPUs
        (PLAN, 12, 8),  # as many as it has memory for
        (replace(PLAN, detached=False), 12, 6),
    ],
)
def test_actors_share_the_cores_with_those_that_start_beside_them(
    plan: PoolPlan, actors: int, neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows(monkeypatch, {})
    monkeypatch.setattr(pool, "announce", lambda *_: None)
    monkeypatch.setattr(pool, "_check_memory", lambda *_: None)
    index: Any = SimpleNamespace(summary={"factory": "Flat"})
    assert pool._fitting(index, MemoryPlan([2**30] * actors, 1), plan) == (replace(plan, neighbours=neighbours), True)


def controlled(
    monkeypatch: pytest.MonkeyPatch, plan: PoolPlan, placed: list[tuple[str, str, bool]]
) -> tuple[controller.PoolController, list[Any]]:
    """A controller whose replicas have these nodes and states, and may be tied to their nodes; with what it starts, as (slot, node), and ends."""
    monkeypatch.setattr(controller.PoolController, "_watch", lambda self: None)
    monkeypatch.setattr(controller.PoolController, "_store", lambda self, current: None)
    monkeypatch.setattr(controller.PoolController, "_stored", lambda self: None)
    monkeypatch.setattr(controller.PoolController, "_actor_names", lambda self: [])
    done: list[Any] = []

    def start(plan: PoolPlan, label: str, slot: tuple[int, int], memory: int, start: int, node: str = "") -> Replica:
        done.append((slot, node))
        return Replica(None, "new", start, "ready", {"node": node})

    monkeypatch.setattr(controller, "start_replica", start)
    monkeypatch.setattr(controller, "retire", lambda replicas: done.append([one.name for one in replicas]))
    monkeypatch.setattr(controller, "end", lambda replicas: done.append([one.name for one in replicas]))
    made = controller.PoolController("pool", "birth", plan, [2**30] * len(placed), 0.0)
    replicas = {(i, 0): Replica(None, f"r{i}", 0, state, {"node": node}, tied=tied) for i, (node, state, tied) in enumerate(placed)}
    made.serving = made.serving[0], replicas
    done.clear()
    return made, done


def grows(monkeypatch: pytest.MonkeyPatch, free: dict[str, float]) -> None:
    """A cluster that adds nodes, whose nodes have so many GiB of memory left."""
    monkeypatch.setattr("ray.nodes", lambda: [HEAD, WORKER, V100, LOST])
    monkeypatch.setattr(pool_nodes, "adds_nodes", lambda: True)
    monkeypatch.setattr(controller, "free_by_node", lambda: {name: {"memory": left * 2**30} for name, left in free.items()})


@pytest.mark.parametrize(
    ("plan", "left", "moved"),
    [
        (PLAN, 2.0, [((1, 0), "worker"), ["r1"]]),
        (PLAN, 0.5, []),  # a start that waits for memory would hold up all else for two minutes
        (replace(PLAN, detached=False), 2.0, []),
    ],
)
def test_a_replica_leaves_a_node_with_gpus_for_one_with_room(
    plan: PoolPlan, left: float, moved: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grows(monkeypatch, {"worker": left, "v100": 4.0})
    made, done = controlled(monkeypatch, plan, [("worker", "ready", False), ("v100", "ready", False)])
    monkeypatch.setattr(made, "_await", lambda replicas, patience: None)
    made._move_one()
    assert done == moved


@pytest.mark.parametrize(
    ("node", "state", "tied", "replaced"),
    [
        ("lost", "away", True, True),
        ("lost", "away", False, False),  # Ray starts it again itself
        ("worker", "away", True, False),
        ("lost", "ready", True, False),
    ],
)
def test_a_replica_that_was_moved_to_a_node_that_is_lost_asks_for_another(
    node: str, state: str, tied: bool, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reports no actor that waits for memory to its autoscaler if it was started for a node, and so no node would come."""
    grows(monkeypatch, {})
    made, done = controlled(monkeypatch, PLAN, [(node, state, tied)])
    made._replace_dead()
    assert done == ([["r0"], ((0, 0), "")] if replaced else [])
    assert made.serving[1][0, 0].start == int(replaced)
