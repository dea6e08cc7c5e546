"""Which nodes take shard actors, and what an actor claims so that Ray's scheduler thinks alike; without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from raydense.retrieval import controller
from raydense.retrieval import nodes as pool_nodes


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
        ([WORKER, V100], False, True, ["worker"]),
        ([WORKER, V100], False, False, ["worker", "v100"]),
        ([HEAD, V100], False, True, ["v100"]),
        ([WORKER, V100], True, True, ["v100"]),
    ],
)
def test_an_actor_on_the_cpu_moves_to_no_node_with_a_gpu_that_a_cluster_added_for_others(
    nodes: list[dict[str, Any]], gpu: bool, adds: bool, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr(controller, "adds_nodes", lambda: adds)
    assert controller._targets(gpu) == names
