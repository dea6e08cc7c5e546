"""Asks Ray's autoscaler, where there is one, whether the nodes will come that a pool's actors wait for."""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.exceptions import RpcError

from raydense.errors import InputError
from raydense.runtime.progress import size
from raydense.runtime.ray_internals import autoscaler_state

_SURE_S = 10.0  # the autoscaler says no for so long: at first it may not have seen what was asked for
_LOOK_S = 1.0


def await_nodes(actor_bytes: list[int], loading: Callable[[], int]) -> None:
    """Until no actor is `loading` any more; InputError once the autoscaler has said for a while that it has no node for one.

    `actor_bytes` are the sizes by which the autoscaler knows them.
    """
    refused_since: float | None = None
    while loading():
        refused, now = _refused({float(one) for one in actor_bytes}), time.monotonic()
        refused_since = (refused_since or now) if refused else None
        if refused_since and now - refused_since > _SURE_S:
            what = f"the cluster's autoscaler has no node for an actor of {size(int(max(refused)))}, with those that wait beside it"
            raise InputError(what, "search", "allow more or larger nodes, or give more shards or fewer replicas")
        time.sleep(_LOOK_S)


def _refused(sizes: set[float]) -> set[float]:
    """Those of the sizes that the autoscaler has no node for."""
    try:
        return sizes & {request.resources_bundle["memory"] for request in autoscaler_state().infeasible_resource_requests}
    except RpcError:  # a busy cluster: it is asked again
        return set()
