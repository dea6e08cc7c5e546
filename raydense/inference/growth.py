"""Says that a pool of actors stays smaller than it may be: Ray's autoscaler refuses what Ray Data asks for."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress

from raydense.runtime.progress import say
from raydense.runtime.ray_internals import autoscaler_state

_SURE_S = 30.0  # Ray Data asks again each 10 s, perhaps for another number


class Growth:
    """`look`, again and again, prints a line once Ray's autoscaler has refused for half a minute to let the cluster grow while the pool is below `most` actors.

    Ray Data asks for twice what is there, whatever the cluster may have, and version 2 of the autoscaler adds nothing if it cannot add all.
    """

    def __init__(self, stage: str, most: int) -> None:
        self._stage, self._most = stage, most
        self._since: float | None = None
        self._said = False

    def look(self, actors: int) -> None:
        """`actors` are in the pool now, with those that wait for a node."""
        if self._said or not actors:
            return
        now, refused = time.monotonic(), _refused() if actors < self._most else ""
        self._since = (self._since or now) if refused else None
        if self._since is not None and now - self._since > _SURE_S:
            what = f"has {actors:,} of up to {self._most:,} actors, and no more nodes come: Ray asks for {refused} at once, more than the cluster may have"
            fix = "to use all of it, stop this and give it again with --concurrency 1,MAX, as many actors as it can hold"
            say(f"{self._stage}: {what}; {fix}")
            self._said = True


def _refused() -> str:
    """All that is asked for at once and refused, by all jobs; "" if nothing is."""
    total: Counter[str] = Counter()
    with suppress(Exception):  # of any class, while the head is away: only a message is lost
        for constraint in autoscaler_state().infeasible_cluster_resource_constraints:
            for one in constraint.resource_requests:
                for name, amount in one.request.resources_bundle.items():
                    total[name] += amount * one.count
    return " and ".join(f"{total[name]:,g} {name}" for name in ("GPU", "CPU") if total[name])
