"""What a stage says while it waits, without Ray."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import ray
from ray.core.generated.autoscaler_pb2 import AutoscalingState, BundleSelector, GangResourceRequest, ResourceRequest

from raydense.runtime import waiting
from raydense.runtime.ray_internals import autoscaler_state


def test_the_line_names_what_the_autoscaler_adds_no_node_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = ({"CPU": 8.0, "memory": 32.0 * 2**30}, {"GPU": 4.0})
    refused = [ResourceRequest(resources_bundle=bundle) for bundle in bundles]
    monkeypatch.setattr(waiting, "autoscaler_state", lambda: AutoscalingState(infeasible_resource_requests=refused))
    assert waiting._not_added() == "; its autoscaler adds no node for 4 GPU or 8 CPU with 32.0 GiB (work of any job)"
    monkeypatch.setattr(waiting, "autoscaler_state", AutoscalingState)
    assert waiting._not_added() == ""


def test_the_line_names_the_workers_that_no_nodes_are_added_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked for together, in either field of Ray's report."""
    worker, other = ResourceRequest(resources_bundle={"CPU": 4.0, "GPU": 1.0}), ResourceRequest(resources_bundle={"CPU": 0.5})
    refused = [
        GangResourceRequest(bundle_selectors=[BundleSelector(resource_requests=[worker] * 48 + [other])]),
        GangResourceRequest(requests=[worker] * 2),
    ]
    monkeypatch.setattr(waiting, "autoscaler_state", lambda: AutoscalingState(infeasible_gang_resource_requests=refused))
    named = "2 x 4 CPU with 1 GPU or 48 x 4 CPU with 1 GPU and 1 x 0.5 CPU"
    assert waiting._not_added() == f"; its autoscaler adds no node for {named} (work of any job)"


def test_a_wait_of_hours_is_said_again_each_half_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ended, said = [0.0], threading.Event(), list[str]()

    def waits() -> bool:
        now[0] += 60
        if now[0] >= 3 * 3600:
            ended.set()
        return now[0] != 2 * 3600  # for a moment it got what it waits for

    monkeypatch.setattr(waiting, "_LOOK_S", 0.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(waiting, "autoscaler_state", AutoscalingState)
    monkeypatch.setattr(waiting, "say", said.append)
    with waiting.Waiting("train", waits):
        assert ended.wait(60)
    line = "train: waits for CPUs, GPUs or memory in use by others, or for new nodes (see `ray status`)"
    assert said[:6] == [line, *(f"{line}, for {time} so far" for time in ("32m00s", "1h03m", "1h34m")), line, f"{line}, for 32m00s so far"]


def test_a_thread_that_outlives_its_ray_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    if ray.is_initialized():
        pytest.skip("another test's Ray runs in this process")
    monkeypatch.setattr(ray, "init", lambda *args, **more: pytest.fail("a Ray was started"))
    assert waiting._not_added() == ""
    with pytest.raises(Exception, match="not been started"):
        autoscaler_state()
