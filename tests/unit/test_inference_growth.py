"""What a stage says where its pool cannot grow, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.core.generated.autoscaler_pb2 import AutoscalingState, ClusterResourceConstraint, ResourceRequest, ResourceRequestByCount

from raydense.inference import growth
from raydense.inference.growth import Growth

ASKED = [({"GPU": 1.0}, 64), ({"CPU": 0.5}, 9)]
REFUSED = ClusterResourceConstraint(
    resource_requests=[ResourceRequestByCount(request=ResourceRequest(resources_bundle=bundle), count=count) for bundle, count in ASKED]
)
LINE = (
    "encode: has 32 of up to 840 actors, and no more nodes come: Ray asks for 64 GPU and 4.5 CPU at once, more than the cluster may have; "
    "to use all of it, stop this and give it again with --concurrency 1,MAX, as many actors as it can hold"
)


@pytest.mark.parametrize(
    ("actors", "refusals", "said"),
    [
        ([32] * 30, [True] * 30, [LINE]),  # once
        ([32] * 30, [True] * 5 + [False] + [True] * 5, []),  # not for long enough
        ([840] * 30, [True] * 30, []),  # all are there, or wait
        ([0] * 30, [True] * 30, []),  # the stage says that it waits
        ([32] * 30, [False] * 30, []),
    ],
)
def test_a_pool_that_cannot_grow_is_said_once(
    actors: list[int], refusals: list[bool], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lines, refused = [0.0], list[str](), [False]
    monkeypatch.setattr(growth, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(growth, "say", lines.append)
    monkeypatch.setattr(
        growth, "autoscaler_state", lambda: AutoscalingState(infeasible_cluster_resource_constraints=[REFUSED] if refused[0] else [])
    )
    looks = Growth("encode", 840)
    for there, refused[0] in zip(actors, refusals, strict=False):
        looks.look(there)
        now[0] += 5
    assert lines == said


def test_a_head_that_is_away_costs_the_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> AutoscalingState:
        raise ConnectionError("no answer")

    monkeypatch.setattr(growth, "autoscaler_state", away)
    Growth("encode", 840).look(32)
