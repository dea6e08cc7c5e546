"""The nodes that a stage may use where it names a kind of GPU, as Ray lists them, without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from raydense.errors import InputError
from raydense.inference import layout
from raydense.inference.layout import Layout
from raydense.inference.settings import Spread
from raydense.runtime.accelerators import no_such_kind, nodes_of
from raydense.training import capacity
from raydense.training.settings import TrainSettings


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    kind = {f"accelerator_type:{name.upper()}": 1.0} if resources.get("GPU") else {}
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 8.0, **resources, **kind}}


NODES = [node("head"), node("t4", GPU=4.0), node("h100", GPU=2.0), node("a100", alive=False, GPU=8.0)]


def settings(**changes: Any) -> TrainSettings:
    values = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "batch_size": 48}
    return TrainSettings(**{**values, **changes})


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.nodes", lambda: NODES)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 24.0, "GPU": 6.0})
    monkeypatch.setattr(layout, "free_by_node", lambda: {one["NodeID"]: one["Resources"] for one in NODES if one["Alive"]})
    for module in (layout, capacity):
        monkeypatch.setattr(module, "joins_cluster", lambda: True)
        monkeypatch.setattr(module, "autoscales", lambda: False)
    monkeypatch.setattr(capacity, "ensure_ray", lambda: None)
    monkeypatch.setattr(capacity, "_COMES_BACK_S", 0.0)


@pytest.mark.parametrize(("kind", "names"), [("", ["head", "t4", "h100"]), ("H100", ["h100"]), ("A100", [])])
def test_the_living_nodes_of_a_kind(kind: str, names: list[str]) -> None:
    assert [one["NodeID"] for one in nodes_of(kind, NODES)] == names


def test_the_kinds_that_there_are_are_named() -> None:
    assert str(no_such_kind("A100", NODES)) == "accelerator: no node has a GPU that Ray names A100; give one of H100, T4"
    assert str(no_such_kind("A100", NODES[:1])).endswith("leave it out: no node names its kind")


def test_a_pool_of_actors_has_the_gpus_of_one_kind() -> None:
    found = {kind: Layout.of(Spread(accelerator=kind), 9) for kind in ("", "T4", "H100")}
    assert {kind: (one.gpus, one.first) for kind, one in found.items()} == {"": (1.0, 6), "T4": (1.0, 4), "H100": (1.0, 2)}
    with pytest.raises(InputError, match="no node has a GPU that Ray names A100"):
        Layout.of(Spread(accelerator="A100"), 9)


def test_a_pool_of_a_kind_that_is_not_there_yet_waits_for_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "autoscales", lambda: True)
    assert Layout.of(Spread(accelerator="A100"), 9) == Layout(fewest=1, first=1, most=9, gpus=1.0, cpus=1.0, per_node=9, threads=1)


def test_the_workers_of_a_training_have_the_gpus_of_one_kind() -> None:
    assert capacity.require_capacity(settings(workers=2, accelerator="H100"))
    with pytest.raises(InputError, match="3 workers x 1 GPU is more than the 2 here"):
        capacity.require_capacity(settings(workers=3, accelerator="H100"))
    with pytest.raises(InputError, match="no node has a GPU that Ray names A100"):
        capacity.require_capacity(settings(accelerator="A100"))
    assert capacity.refresh_actors(settings(workers=1, accelerator="T4")) == 3


@pytest.mark.parametrize(
    "read", [lambda: Spread(accelerator="T4", gpus_per_actor=0.0), lambda: settings(accelerator="T4", gpus_per_worker=0)]
)
def test_a_kind_of_gpu_without_gpus_is_refused(read: Any) -> None:
    with pytest.raises((ValueError, InputError), match=r"accelerator names a kind of GPU, and gpus_per_\w+ is 0"):
        read()


def test_ray_takes_the_kind_with_the_workers() -> None:
    from ray.train import ScalingConfig

    each = {"CPU": 1.0, "GPU": 1.0}
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker=each, accelerator_type="H100")
    assert "accelerator_type:H100" in scaling._resources_per_worker_not_none
