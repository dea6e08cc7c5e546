"""The replicas of a named pool: detached shard actors, their names, health checks, and how they end."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from raydense.errors import why
from raydense.retrieval.placement import Slot
from raydense.retrieval.shard_actor import NAMESPACE, PoolPlan, start_actor

CHECK_S = 1.0  # between two checks of the actors
_QUIET_S, _DRAIN_S = 2.0, 30.0  # retired actors end after this time without a call, and after this time in any case


@dataclass
class Replica:
    """One shard actor: loading, ready, away (Ray restarts it) or dead; `fault` is why it could not start.

    It may be `tied` to the node that it was started for; without that, Ray's autoscaler hears of it where it waits for memory.
    """

    actor: Any
    name: str
    start: int
    state: str = "loading"
    health: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    check: Any = None  # the call of `health` in progress
    since: float = field(default_factory=time.monotonic)
    tied: bool = False

    def update(self) -> None:
        """Record the result of the finished check."""
        ref, self.check = self.check, None
        try:
            self.health = ray.get(ref)
            self.state, self.fault = "ready", ""
        except ActorDiedError as error:
            self.state, self.since = "dead", time.monotonic()
            self.fault = why(error) if "creation task" in str(error) else ""
        except RayError:
            self.state = "away" if self.state != "loading" else "loading"


Replicas = dict[Slot, Replica]


def start_replica(plan: PoolPlan, label: str, slot: Slot, memory: int, start: int, node: str = "") -> Replica:
    """Start the actor of a slot as LABEL/SHARD/REPLICA/START/ID, a name that no actor had before."""
    name = f"{label}/{slot[0]}/{slot[1]}/{start}/{uuid.uuid4().hex[:8]}"
    return Replica(start_actor(plan, slot[0], memory, name, node), name, start, tied=bool(node))


def parsed(name: str) -> tuple[Slot, int]:
    """The slot of an actor, and how many were started there before it, from its name."""
    shard, replica, start = map(int, name.split("/")[-4:-1])
    return (shard, replica), start


def check(replicas: Collection[Replica]) -> None:
    """Update the replicas that answer within a second; a check without an answer stays open, and its replica is away."""
    for replica in replicas:
        if replica.check is None and replica.state != "dead":
            replica.check = replica.actor.health.remote()
    checked = {replica.check: replica for replica in replicas if replica.check is not None}
    done, late = ray.wait(list(checked), num_returns=len(checked), timeout=CHECK_S) if checked else ([], [])
    for ref in done:
        checked[ref].update()
    for ref in late:
        if checked[ref].state == "ready":
            checked[ref].state = "away"


def retire(replicas: list[Replica]) -> None:
    """Have the replicas refuse new searches; those that do not answer end at once, the others when their calls are done."""
    refs = {replica.actor.retire.remote(): replica for replica in replicas}
    ray.wait(list(refs), num_returns=len(refs), timeout=5.0)
    silent = [replica for ref, replica in refs.items() if not _has_answer(ref)]
    end(silent)
    left = [replica for replica in replicas if replica not in silent]
    threading.Thread(target=_drain, args=(left,), daemon=True).start()


def _drain(replicas: list[Replica]) -> None:
    """End retired actors after a while without a call; a later caller starts its block again on the new ones."""
    deadline = time.monotonic() + _DRAIN_S
    while replicas and time.monotonic() < deadline:
        time.sleep(CHECK_S / 2)
        checks = [(replica, replica.actor.health.remote()) for replica in replicas]
        ray.wait([ref for _, ref in checks], num_returns=len(checks), timeout=CHECK_S)
        quiet = [replica for replica, ref in checks if _has_answer(ref) and ray.get(ref)["idle_s"] > _QUIET_S]
        end(quiet)
        replicas = [replica for replica in replicas if replica not in quiet]
    end(replicas)


def _has_answer(ref: Any) -> bool:
    """Whether the result has come and is no error."""
    try:
        ray.get(ref, timeout=0)
        return True
    except RayError:
        return False


def end(replicas: list[Replica]) -> None:
    """End the actors; Ray does not restart them."""
    for replica in replicas:
        ray.kill(replica.actor, no_restart=True)


def named_actor(name: str) -> Any:
    """The actor of a name, or None."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def kill_named(name: str) -> None:
    """End the actor of a name, if it exists."""
    actor = named_actor(name)
    if actor is not None:
        ray.kill(actor, no_restart=True)
