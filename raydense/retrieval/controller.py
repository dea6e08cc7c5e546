"""The controller of a pool with a name: a small actor that starts its shard actors, watches them, and switches it to other indexes.

The state that must outlive the controller's process (the current version) is in Ray's key-value store, which lives as long as detached
actors do; the shard actors are found again by their names. So the controller and its callers may die at any moment.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import ray

from raydense.retrieval.nodes import nodes_apart, shard_nodes
from raydense.retrieval.placement import Slot, next_move
from raydense.retrieval.replicas import CHECK_S, Replica, Replicas, check, end, kill_named, named_actor, parsed, retire, start_replica
from raydense.retrieval.shard_actor import NAMESPACE, PoolPlan, lifetime
from raydense.retrieval.versions import Table
from raydense.runtime.ray_internals import free_by_node, kv_delete, kv_get, kv_put

_RETRY_S = 30.0  # before an actor that could not start is started again
_MOVE_S = 120.0  # in which a replica must load on another node


@dataclass(frozen=True)
class Current:
    """The stored state of a pool: its version, the bytes of each shard's actor, and the request that made the version."""

    number: int
    plan: PoolPlan
    actor_bytes: list[int]
    request: str

    @property
    def slots(self) -> list[Slot]:
        """The slots in the order in which they are filled if memory is short: one replica of every shard first."""
        return [(shard, replica) for replica in range(self.plan.replicas) for shard in range(len(self.actor_bytes))]


class Refused(Exception):
    """A version that cannot be started."""


class PoolController:
    """Holds a pool's plan, its current version, and the health of its replicas; ends all after `idle_timeout` seconds without a call."""

    def __init__(self, name: str, birth: str, plan: PoolPlan, actor_bytes: list[int], idle_timeout: float) -> None:
        self.name, self.birth, self.idle_timeout = name, birth, idle_timeout
        self.closing = self.swapping = False
        self._changing = threading.Lock()  # a swap, a move, a replacement: one at a time
        self._active, self._no_move_before = time.monotonic(), 0.0
        current = self._stored() or Current(1, plan, actor_bytes, "")
        self._store(current)
        self.serving: tuple[Current, Replicas] = (current, self._recovered(current))  # one tuple: readers never see them mixed
        threading.Thread(target=self._watch, daemon=True).start()

    @ray.method(concurrency_group="state")
    def table(self) -> Table:
        """The current version, with the actors of each shard that answer; a fault if a shard has none and none is starting."""
        current, replicas = self.serving
        if self.closing:
            return Table(current.number, current.plan, [[]], "was closed")
        actors: list[list[Any]] = [[] for _ in current.actor_bytes]
        fault = ""
        for (shard, _), replica in sorted(replicas.items()):
            if replica.state == "ready":
                actors[shard].append(replica.actor)
        for shard, of in enumerate(actors):
            if not of:
                mine = [replica for (s, _), replica in replicas.items() if s == shard]
                of += [replica.actor for replica in mine if replica.state == "away"]
                if mine and all(replica.fault for replica in mine):
                    fault = f"no actor of shard {shard} could start ({mine[0].fault})"
        return Table(current.number, current.plan, actors, fault)

    @ray.method(concurrency_group="state")
    def status(self) -> dict[str, Any]:
        """The pool as JSON: its index, version and settings, the seconds since the last call, and each actor."""
        current, replicas = self.serving
        rows = [
            {"shard": slot[0], "replica": slot[1], "state": r.state, **r.health, **({"fault": r.fault} if r.fault else {})}
            for slot, r in sorted(replicas.items())
        ]
        plan = {key: value for key, value in asdict(current.plan).items() if key not in ("neighbours", "sharing")}
        times = {"idle_timeout": self.idle_timeout, "idle_s": round(self._idle(), 1)}
        return {"name": self.name, "version": current.number, **plan, **times, "swapping": self.swapping, "actors": rows}

    @ray.method(concurrency_group="change")
    def swap(self, of: int, plan: PoolPlan, actor_bytes: list[int], request: str, patience: float) -> str:
        """Start `plan`'s actors next to the current ones, wait until they are loaded, switch to them, and retire the old ones.

        Returns why that was not possible, or "": the plan must be made from the current version, whose number is `of`. A request that an earlier process of this controller completed is not repeated.
        """
        with self._changing:
            current, old = self.serving
            if current.request == request or self.closing:
                return "" if current.request == request else "the pool is being closed"
            if current.number != of:
                return "another swap was faster, and some settings may be its own: swap again"
            self.swapping = True
            try:
                new = Current(current.number + 1, plan, actor_bytes, request)
                replicas = self._loaded(new, patience)
                self._store(new)  # from here on the new version is current, even if processes die
                self.serving = new, replicas
                retire(list(old.values()))
                return ""
            except Refused as refused:
                return str(refused)
            finally:
                self._active, self.swapping = time.monotonic(), False

    @ray.method(concurrency_group="state")
    def close(self) -> None:
        """End all actors of the pool but this one, which the caller ends afterwards."""
        self._end_all()

    def _end_all(self) -> None:
        self.closing = True
        self._changing.acquire(timeout=10.0)  # and never released: nothing starts any more
        kv_delete(self._key(), NAMESPACE)
        for name in self._actor_names():
            kill_named(name)

    # -- state that is stored and recovered

    def _key(self) -> str:
        return f"pool/{self.name}/{self.birth}"

    def _store(self, current: Current) -> None:
        kv_put(self._key(), json.dumps(asdict(current)).encode(), NAMESPACE)

    def _stored(self) -> Current | None:
        text = kv_get(self._key(), NAMESPACE)
        if text is None:
            return None
        stored = json.loads(text)
        return Current(**{**stored, "plan": PoolPlan(**stored["plan"])})

    def _actor_names(self) -> list[str]:
        """The names of the shard actors of this pool, and of earlier pools of its name."""
        listed = ray.util.list_named_actors(all_namespaces=True)
        shards = [actor["name"] for actor in listed if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{self.name}/")]
        return sorted(name for name in shards if name != controller_name(self.name))

    def _label(self, current: Current) -> str:
        return f"{self.name}/{self.birth}-{current.number}"

    def _recovered(self, current: Current) -> Replicas:
        """The actors of the current version: the last started in each slot, and new ones for the rest. Others of the name end."""
        found: Replicas = {}
        for name in sorted(self._actor_names(), key=lambda name: parsed(name)[1], reverse=True):
            slot, start = parsed(name)
            actor = named_actor(name) if name.startswith(f"{self._label(current)}/") and slot not in found else None
            if actor is not None:
                found[slot] = Replica(actor, name, start, tied=True)  # perhaps
            else:
                kill_named(name)
        return found | {slot: self._start(current, slot, 0) for slot in current.slots if slot not in found}

    def _end_leftovers(self) -> None:
        """End actors that are no replica of this pool; a swap leaves such actors if the controller dies during it."""
        mine = {replica.name for replica in self.serving[1].values()}
        for name in self._actor_names():
            if name not in mine:
                kill_named(name)

    # -- starting

    def _start(self, current: Current, slot: Slot, start: int, node: str = "") -> Replica:
        return start_replica(current.plan, self._label(current), slot, current.actor_bytes[slot[0]], start, node)

    def _loaded(self, new: Current, patience: float) -> Replicas:
        """The actors of a version, loaded; Refused, and all of them ended, if they cannot be."""
        self._end_leftovers()
        replicas = {slot: self._start(new, slot, 0) for slot in new.slots}
        try:
            self._await(replicas, patience)
        except Refused:
            end(list(replicas.values()))
            raise
        return replicas

    def _await(self, replicas: Replicas, patience: float) -> None:
        """Wait until all are loaded; after `patience` seconds, one of each shard is enough. Refused otherwise, or if one cannot load."""
        deadline = time.monotonic() + patience
        while not all(replica.state == "ready" for replica in replicas.values()):
            check(replicas.values())
            time.sleep(0.05)
            fault = next((replica.fault or "an actor died" for replica in replicas.values() if replica.state == "dead"), "")
            if fault or self.closing:
                raise Refused(fault or "the pool is being closed")
            if time.monotonic() > deadline:
                without = {shard for shard, _ in replicas} - {shard for (shard, _), r in replicas.items() if r.state == "ready"}
                if without:
                    raise Refused(f"shard {min(without)} was not loaded in {patience:.0f} s: no node may have memory for both actors")
                return

    # -- watching

    def _watch(self) -> None:
        while not self.closing:
            try:
                self._look()
            except Exception:  # the next check may succeed
                traceback.print_exc()
            time.sleep(CHECK_S)
        time.sleep(10.0)  # the caller of `close` died before it ended this actor too
        kill_named(controller_name(self.name))

    def _look(self) -> None:
        current, replicas = self.serving
        check(replicas.values())
        answering = {shard for (shard, _), replica in replicas.items() if replica.state == "ready"}
        if self.swapping or len(answering) < len(current.actor_bytes):
            self._active = time.monotonic()  # a pool that is switched, or cannot answer, is not idle
        if self.idle_timeout and self._idle() > self.idle_timeout:
            self._end_all()
            kill_named(controller_name(self.name))
        elif self._changing.acquire(blocking=False):
            try:
                if not self.closing:
                    self._replace_dead()
                    self._move_one()
            finally:
                self._changing.release()

    def _idle(self) -> float:
        """Seconds since the last call of a shard actor, since the pool could first answer, or since it was switched."""
        idle = [replica.health["idle_s"] for replica in self.serving[1].values() if replica.state == "ready"]
        return min([time.monotonic() - self._active, *idle])

    def _replace_dead(self) -> None:
        """Replace actors that Ray does not restart: one that was killed for good, or whose start failed a while ago.

        And one whose own node is lost: Ray waits until others have memory for it, and adds no node.
        """
        current, replicas = self.serving
        for slot, replica in list(replicas.items()):
            stranded = replica.tied and replica.state == "away" and not _is_up(replica.health.get("node"))
            if stranded:
                end([replica])
            if stranded or (replica.state == "dead" and (not replica.fault or time.monotonic() - replica.since > _RETRY_S)):
                new = self._start(current, slot, replica.start + 1)
                new.fault = replica.fault
                self._put(slot, new)

    def _move_one(self) -> None:
        """Move one replica to a new node if that spreads them better; the old actor serves until the new one is loaded."""
        current, replicas = self.serving
        if time.monotonic() < self._no_move_before or any(replica.state != "ready" for replica in replicas.values()):
            return
        placed = {slot: replica.health["node"] for slot, replica in replicas.items()}
        apart = nodes_apart(current.plan.gpu)
        targets = [node["NodeID"] for node in apart or shard_nodes(current.plan.gpu)]
        leave = set(placed.values()) - set(targets) if apart and current.plan.detached else set()
        move = next_move(placed, _with_room(targets, max(current.actor_bytes)), leave)
        if move is None:
            return
        slot, node = move
        old = replicas[slot]
        new = self._start(current, slot, old.start + 1, node)
        try:
            self._await({slot: new}, _MOVE_S)
            if new.health["node"] != node:
                raise Refused("it was placed elsewhere")
        except Refused:
            end([new])
            self._no_move_before = time.monotonic() + 10 * _RETRY_S
            return
        self._put(slot, new)
        retire([old])

    def _put(self, slot: Slot, new: Replica) -> None:
        current, replicas = self.serving
        self.serving = current, {**replicas, slot: new}


def _is_up(node: str | None) -> bool:
    return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())


def _with_room(nodes: list[str], memory: int) -> list[str]:
    """The nodes that have so much unreserved: an actor that is started for another would wait for it."""
    free = free_by_node()
    return [node for node in nodes if free.get(node, {}).get("memory", 0) >= memory]


def controller_name(name: str) -> str:
    """The name of the actor that controls the pool `name`."""
    return f"{name}/controller"


def start_controller(name: str, birth: str, plan: PoolPlan, actor_bytes: list[int], idle_timeout: float) -> Any:
    """Start the controller of a new pool; ValueError if one of the name exists. `birth` tells pools of one name apart.

    The controller of a plan that is not detached ends when its handle is dropped.
    """
    options: dict[str, Any] = {
        "num_cpus": 0,
        "name": controller_name(name),
        "namespace": NAMESPACE,
        **lifetime(plan),
        "max_restarts": -1,
        "max_task_retries": -1,
        "concurrency_groups": {"state": 8, "change": 1},
    }
    return ray.remote(**options)(PoolController).remote(name, birth, plan, actor_bytes, idle_timeout)
