"""The nodes that can take a process of an app: what no cluster of them can have is refused, and an index is held where its process can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydense.errors import InputError
from raydense.serving.holding import held_bytes
from raydense.serving.processes import check_processes, start_fault
from raydense.serving.reranking import Reranker, reranking
from raydense.serving.settings import ServeSettings
from raydense.storage import Draft

GIB = 2**30


def node(name: str, gib: float = 8.0, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"memory": gib * GIB, **resources}}


HEAD, WORKER, V100, LOST = node("head"), node("worker", CPU=4), node("v100", CPU=2, GPU=1), node("lost", CPU=99, GPU=9, alive=False)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the nodes of the cluster, and whether it adds some."""

    def set_nodes(nodes: list[dict[str, Any]], grows: bool = False) -> None:
        monkeypatch.setattr("ray.nodes", lambda: nodes)
        monkeypatch.setattr("raydense.serving.holding.free_by_node", lambda: {one["NodeID"]: one["Resources"] for one in nodes})
        monkeypatch.setattr("raydense.runtime.session.adds_nodes", lambda: grows)

    return set_nodes


RERANKED = {"corpus": "c", "reranker": "m"}
TOO_MUCH = [
    ([WORKER, LOST], {"replicas": 5}, "replicas: the processes need 5 CPUs, and the nodes have 4; give fewer, or more nodes"),
    ([HEAD, WORKER], {"gpus_per_replica": 1}, "replicas: a process needs a CPU and 1 GPU on one node, and there is none; give fewer GPUs"),
    ([HEAD], {}, "replicas: a process needs a CPU, and there is none; add a node"),
    (
        [WORKER],
        {"replicas": 3, "reranker_replicas": 2, **RERANKED},
        "replicas and reranker_replicas: the processes need 5 CPUs, and the nodes have 4; give fewer, or more nodes",
    ),
    (
        [WORKER, V100],
        {"gpus_per_replica": 0.6, "gpus_per_reranker": 0.5, **RERANKED},
        "replicas and reranker_replicas: the processes need 1.1 GPUs, and the nodes have 1; give fewer, or more nodes",
    ),
    (
        [WORKER],
        {"gpus_per_reranker": 0.5, **RERANKED},
        "reranker_replicas: a process needs a CPU and 0.5 GPU on one node, and there is none; give fewer GPUs",
    ),
]


@pytest.mark.parametrize(("nodes", "given", "line"), TOO_MUCH)
def test_processes_that_the_nodes_can_never_have_are_refused(cluster: Any, nodes: list[Any], given: dict[str, Any], line: str) -> None:
    """Unless the cluster adds nodes."""
    settings = ServeSettings(index=["i"], **given)
    cluster(nodes)
    with pytest.raises(InputError) as refused:
        check_processes(settings)
    assert str(refused.value) == line
    cluster(nodes, grows=True)
    check_processes(settings)


@pytest.mark.parametrize(
    ("nodes", "given"),
    [
        ([WORKER], {"replicas": 4}),
        ([HEAD, V100], {"gpus_per_replica": 0.7, "gpus_per_reranker": 0.3, **RERANKED}),
        ([WORKER, V100], {"replicas": 3, "reranker_replicas": 3, "gpus_per_reranker": 0.333, **RERANKED}),
    ],
)
def test_processes_that_fit_are_not_refused(cluster: Any, nodes: list[Any], given: dict[str, Any]) -> None:
    cluster(nodes)
    check_processes(ServeSettings(index=["i"], **given))


@pytest.mark.parametrize(
    ("nodes", "gpus", "held"),
    [
        ([node("cpu", CPU=4), node("gpu", 0.5, CPU=4, GPU=1)], 1, False),
        ([node("cpu", CPU=4), node("gpu", 0.5, CPU=4, GPU=1)], 0, True),
        ([node("cpu", 0.5, CPU=4), node("gpu", CPU=4, GPU=1)], 0.5, True),
        ([node("head"), node("cpu", 0.5, CPU=4)], 0, False),
    ],
)
def test_an_index_is_held_where_a_node_that_takes_the_process_has_the_memory(
    cluster: Any, nodes: list[Any], gpus: float, held: bool, tmp_path: Path
) -> None:
    """A process of some 400 MiB, and another next to it while settings change."""
    Draft.open(tmp_path / "ix", "index", {}).finish(1, kind="bm25", shards=[[0, 1]])
    cluster(nodes)
    assert bool(held_bytes(ServeSettings(index=[tmp_path / "ix"], gpus_per_replica=gpus))) == held


def test_what_kept_a_process_from_its_start_is_a_line() -> None:
    report = "The deployment failed to start 3 times in a row. Error:\nTraceback (most recent call last):\n  File ...\n"
    assert start_fault(f"{report}raydense.errors.InputError: ix: no such folder; give one\n") == "ix: no such folder; give one"
    assert start_fault(f"{report}ValueError: of ours\n\n") == "ValueError: of ours"


@pytest.mark.parametrize(("gpus", "uses"), [(0, False), (0.5, True)])
def test_a_process_computes_on_a_gpu_where_it_claims_one(gpus: float, uses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray shows a process that claims none all GPUs of its node."""
    given: list[bool] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("raydense.serving.reranking.PassageStore", lambda *asked: None)
    monkeypatch.setattr("raydense.serving.reranking.PassageScorer", lambda model, corpus, fingerprint, gpu: given.append(gpu))
    settings = ServeSettings(index=["i"], gpus_per_reranker=gpus, **RERANKED)
    Reranker.func_or_class(*reranking(settings, {"reranker": "1", "corpus": "2"})._bound_deployment.init_args)
    assert given == [uses]
