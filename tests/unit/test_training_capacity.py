"""What the workers of a training claim, held against what nodes have, without Ray."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.core.generated.autoscaler_pb2 import AutoscalingState, GangResourceRequest, ResourceRequest

from raydense.errors import InputError
from raydense.training import capacity
from raydense.training.capacity import Placing, lack
from raydense.training.settings import TrainSettings

HEAD, EIGHT, V100 = {"memory": 8.0}, {"CPU": 8.0}, {"CPU": 4.0, "GPU": 1.0}


def settings(**changes: Any) -> TrainSettings:
    values = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "batch_size": 48}
    return TrainSettings(**{**values, **changes})


@pytest.mark.parametrize(
    ("nodes", "gpu", "changes", "message"),
    [
        ([EIGHT], False, {"workers": 12}, "12 workers x 1 CPU is more than the 8 here; give fewer workers, or --cpus-per-worker less"),
        ([EIGHT, EIGHT], False, {"cpus_per_worker": 12.0}, "1 workers, each with 12 CPU of one node: 0 fit on the 2 nodes here"),
        ([EIGHT], True, {}, "1 workers x 1 GPU is more than the 0 here; give fewer workers, or --gpus-per-worker 0"),
        ([V100, EIGHT], True, {"cpus_per_worker": 6.0}, "1 workers, each with 6 CPU and 1 GPU of one node: 0 fit on the 2 nodes here"),
        (
            [EIGHT],
            False,
            {"workers": 8, "refresh": {"every": 2, "mode": "async"}},
            "8 workers x 1 CPU, and 1.5 for what finds negatives meanwhile, is more than the 8 here",
        ),
    ],
)
def test_what_no_nodes_have_is_reported(nodes: list[dict[str, float]], gpu: bool, changes: dict[str, Any], message: str) -> None:
    fault = lack(settings(**changes), gpu, nodes)
    assert message in str(fault)


@pytest.mark.parametrize(
    ("nodes", "gpu", "changes"),
    [
        ([HEAD, EIGHT], False, {"workers": 8}),
        ([EIGHT, EIGHT], False, {"workers": 3, "cpus_per_worker": 4.0}),
        ([HEAD, V100, V100], True, {"workers": 2, "cpus_per_worker": 4.0}),
        ([EIGHT], False, {"workers": 6, "refresh": {"every": 2, "mode": "async"}}),
        ([EIGHT], False, {"workers": 8, "refresh": {"every": 2}}),
        ([{"CPU": 4.5, "GPU": 5.0}], True, {"workers": 4, "refresh": {"every": 2, "mode": "async"}}),  # what encodes has a GPU, and no CPU
        ([{"CPU": 55.0}], False, {"workers": 25, "cpus_per_worker": 2.2, "batch_size": 50}),
        ([{"CPU": 33.0}], False, {"workers": 30, "cpus_per_worker": 1.1, "batch_size": 60}),
    ],
)
def test_what_nodes_have_together_is_enough(nodes: list[dict[str, float]], gpu: bool, changes: dict[str, Any]) -> None:
    assert lack(settings(**changes), gpu, nodes) is None


JOB, OWN, OTHER = "05000000", "a105000000", "b206000000"  # ids of a job, and of groups that end with that of their job
MESSAGE = (
    "^workers: the cluster's autoscaler has no nodes for 8 workers, each with 1 CPU and 1 GPU, and no other work holds any; give fewer"
)
FREE = {"one": {"CPU": 3.999, "GPU": 4.0}, "head": {"memory": 8.0}}  # an actor of a pool holds a sliver of a CPU


@pytest.mark.parametrize(
    ("waiting", "refused", "free", "fault"),
    [
        ([OWN], [OWN], FREE, True),
        ([OWN, OTHER], [OWN, OTHER], FREE, True),
        ([OWN], [], FREE, False),  # nodes come
        ([], [OWN], FREE, False),  # an old report
        ([OTHER], [OTHER], FREE, False),  # of another job
        ([OWN, OTHER], [OWN], FREE, False),  # nodes come for another one, and are free after it
        ([OWN], [OWN], {"one": {"CPU": 4.0, "GPU": 3.0}}, False),  # others have a GPU
        ([OWN], [OWN], {"one": {"CPU": 2.0, "GPU": 4.0}}, False),
        ([OWN], [OWN], {}, False),  # the node has just come
    ],
)
def test_workers_that_the_autoscaler_has_no_nodes_for_end_the_training_where_nobody_will_free_any(
    waiting: list[str], refused: list[str], free: dict[str, dict[str, float]], fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ResourceRequest(resources_bundle={"CPU": 1.0, "GPU": 1.0})] * 8
    groups = [GangResourceRequest(details=f"{name}:PACK|PENDING", requests=requests) for name in refused]
    nodes = [("one", {"CPU": 4.0, "GPU": 4.0}), ("head", {"memory": 8.0}), ("cpus", {"CPU": 8.0})]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(capacity, "autoscaler_state", lambda: AutoscalingState(infeasible_gang_resource_requests=groups))
    monkeypatch.setattr(capacity, "free_by_node", lambda: free)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": name, "Alive": True, "Resources": has} for name, has in nodes])
    monkeypatch.setattr(
        ray.util, "placement_group_table", lambda: {name: {"state": "PENDING"} for name in waiting} | {"c": {"state": "CREATED"}}
    )
    now = [1000.0]
    monkeypatch.setattr(capacity, "time", SimpleNamespace(monotonic=lambda: now[0]))
    placing = Placing(settings(workers=8), JOB)
    for _ in range(12):  # for a minute: nodes that end may be replaced
        assert placing.waits() == (OWN in waiting)
        placing.refuse()
        now[0] += 5
    placing.waits()
    with pytest.raises(InputError, match=MESSAGE) if fault else nullcontext():
        placing.refuse()


def test_a_look_that_fails_begins_the_minute_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the head is away: its autoscaler may have found nodes meanwhile."""
    found: list[Any] = [{"CPU": 1.0}, ConnectionError("no answer"), {"CPU": 1.0}]
    now = [1000.0]

    def refused(own: set[str], waiting: set[str]) -> Any:
        if isinstance(one := found.pop(0), Exception):
            raise one
        return one

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: {OWN: {"state": "PENDING"}})
    monkeypatch.setattr(capacity, "_refused", refused)
    monkeypatch.setattr(capacity, "time", SimpleNamespace(monotonic=lambda: now[0]))
    placing = Placing(settings(workers=8), JOB)
    for ends in (nullcontext(), pytest.raises(ConnectionError), nullcontext()):
        with ends:
            placing.waits()
        now[0] += 40
    placing.refuse()
