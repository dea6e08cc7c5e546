"""Asks Ray's autoscaler, where there is one, whether the nodes will come that a pool's actors wait for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2
from ray.exceptions import RpcError

from raydense.errors import InputError

_SURE_S = 10.0  # the autoscaler says no for so long: at first it may not have seen what was asked for
_LOOK_S = 1.0


def autoscales() -> bool:
    """Whether nodes come by themselves on this cluster: Ray's autoscaler (v2) has said something."""
    return _state().autoscaler_state_version > 0


class Growth:
    """Actors that wait for nodes; `check` raises InputError once it is sure that none comes for one of them."""

    def __init__(self, actor_bytes: Iterable[int]) -> None:
        self._wanted = {float(size) for size in actor_bytes}
        self._refused_since: float | None = None
        self._looked = 0.0

    def check(self) -> None:
        """InputError where the autoscaler has said for ten seconds that it has no node for an actor of such a size; to be called often."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            infeasible = _state().infeasible_resource_requests
        except RpcError:  # a busy cluster: it is asked again
            return
        refused = self._wanted & {request.resources_bundle["memory"] for request in infeasible}
        if not refused:
            self._refused_since = None
            return
        self._refused_since = self._refused_since or now
        if now - self._refused_since > _SURE_S:
            what = f"the cluster's autoscaler has no node for an actor of {max(refused) / 2**20:,.0f} MiB, with those that wait beside it"
            raise InputError(what, "search", "allow more or larger nodes, or give more shards or fewer replicas")


def _state() -> Any:
    reply = autoscaler_pb2.GetClusterStatusReply()  # type: ignore[attr-defined]
    reply.ParseFromString(GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=30))
    return reply.autoscaling_state
