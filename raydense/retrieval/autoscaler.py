"""Waits for the nodes that Ray's autoscaler adds for a pool's actors, or reports that no node type fits them."""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.exceptions import RpcError

from raydense.errors import InputError
from raydense.runtime.progress import size
from raydense.runtime.ray_internals import autoscaler_state

_SURE_S = 10.0  # how long the autoscaler must refuse: at first it may not have seen the request
_LOOK_S = 1.0


def await_nodes(actor_bytes: list[int], loading: Callable[[], int]) -> None:
    """Wait until no actor is `loading`; InputError once the autoscaler has refused a node for one for a while.

    `actor_bytes` are the requested sizes, by which the autoscaler's reports name them.
    """
    refused_since: float | None = None
    while loading():
        refused, now = _refused({float(one) for one in actor_bytes}), time.monotonic()
        refused_since = (refused_since or now) if refused else None
        if refused_since and now - refused_since > _SURE_S:
            what = f"the cluster's autoscaler has no node for an actor of {size(int(max(refused)))}, with the others that wait"
            raise InputError(what, "search", "allow more or larger nodes, or give more shards or fewer replicas")
        time.sleep(_LOOK_S)


def _refused(sizes: set[float]) -> set[float]:
    """The sizes for which the autoscaler has no node."""
    try:
        return sizes & {request.resources_bundle["memory"] for request in autoscaler_state().infeasible_resource_requests}
    except RpcError:  # a busy cluster: the next call may succeed
        return set()
