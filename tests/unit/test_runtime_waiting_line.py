"""What a stage says while it waits, without Ray."""

from __future__ import annotations

import pytest
import ray
from ray.core.generated.autoscaler_pb2 import AutoscalingState, ResourceRequest

from raydense.runtime import waiting
from raydense.runtime.ray_internals import autoscaler_state


def test_the_line_names_what_the_autoscaler_adds_no_node_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = ({"CPU": 8.0, "memory": 32.0 * 2**30}, {"GPU": 4.0})
    refused = [ResourceRequest(resources_bundle=bundle) for bundle in bundles]
    monkeypatch.setattr(waiting, "autoscaler_state", lambda: AutoscalingState(infeasible_resource_requests=refused))
    assert waiting._not_added() == "; its autoscaler adds no node for 4 GPU or 8 CPU with 32.0 GiB (work of any job)"
    monkeypatch.setattr(waiting, "autoscaler_state", AutoscalingState)
    assert waiting._not_added() == ""


def test_a_thread_that_outlives_its_ray_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    if ray.is_initialized():
        pytest.skip("another test's Ray runs in this process")
    monkeypatch.setattr(ray, "init", lambda *args, **more: pytest.fail("a Ray was started"))
    assert waiting._not_added() == ""
    with pytest.raises(Exception, match="not been started"):
        autoscaler_state()
