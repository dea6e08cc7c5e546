"""The keeper of a pool with a name: one small detached actor that starts its shard actors, looks after them, and turns it to other indexes.

What must outlive the keeper's own process (which version is current) lies in Ray's key-value store, which lives as long as detached
actors do; the shard actors are found again by their names. So the keeper, and whoever asked it for something, may die at any moment.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from raydense.errors import why
from raydense.retrieval.asking import Table
from raydense.retrieval.placement import Place, next_move
from raydense.retrieval.shard_actor import NAMESPACE, PoolPlan, shard_nodes, start_actor
from raydense.runtime.ray_internals import kv_delete, kv_get, kv_put

_LOOK_S = 1.0  # between two looks at the actors
_RETRY_S = 30.0  # before an actor is started again that could not be started
_MOVE_S = 120.0  # that a replica may take to load on another node
_QUIET_S, _DRAIN_S = 2.0, 30.0  # retired actors end when nobody asked them for so long, and at the latest


@dataclass
class Replica:
    """One shard actor as its keeper sees it: loading, ready, away (Ray brings it back) or dead."""

    actor: Any
    name: str
    start: int
    state: str = "loading"
    health: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    asked: Any = None
    since: float = field(default_factory=time.monotonic)


Replicas = dict[Place, Replica]


@dataclass(frozen=True)
class Current:
    """What is kept of a pool beyond the keeper's process: its version, the bytes of each shard's actor, and the request that made it."""

    number: int
    plan: PoolPlan
    actor_bytes: list[int]
    request: str


class Refused(Exception):
    """A version that cannot be started."""


class PoolKeeper:
    """Holds a pool's plan, its current version, and the health of its replicas; ends all when nobody has asked for `idle_timeout` seconds."""

    def __init__(self, name: str, birth: str, plan: PoolPlan, actor_bytes: list[int], idle_timeout: float) -> None:
        self.name, self.birth, self.idle_timeout = name, birth, idle_timeout
        self.closing = self.swapping = False
        self._changing = threading.Lock()  # a swap, a move, a replacement: one at a time
        self._active, self._no_move_before = time.monotonic(), 0.0
        current = self._kept() or Current(1, plan, actor_bytes, "")
        self._keep(current)
        self.serving: tuple[Current, Replicas] = (current, self._recovered(current))  # both in one, so that nobody reads them mixed
        threading.Thread(target=self._watch, daemon=True).start()

    @ray.method(concurrency_group="state")
    def table(self) -> Table:
        """The current version, with the actors of each shard that answer; a fault where a shard has none and none is on its way."""
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
            {"shard": place[0], "replica": place[1], "state": r.state, **r.health, **({"fault": r.fault} if r.fault else {})}
            for place, r in sorted(replicas.items())
        ]
        plan = {key: value for key, value in asdict(current.plan).items() if key != "neighbours"}
        times = {"idle_timeout": self.idle_timeout, "idle_s": round(self._idle(), 1)}
        return {"name": self.name, "version": current.number, **plan, **times, "swapping": self.swapping, "actors": rows}

    @ray.method(concurrency_group="change")
    def swap(self, plan: PoolPlan, actor_bytes: list[int], request: str, patience: float) -> str:
        """Start `plan`'s actors beside, wait until they are loaded, turn to them; then retire the old ones. Says what hindered it, or "".

        A request that was carried out before, by a process of this keeper that died then, is not carried out again.
        """
        with self._changing:
            current, old = self.serving
            if current.request == request or self.closing:
                return "" if current.request == request else "the pool is being closed"
            self.swapping = True
            try:
                new = Current(current.number + 1, plan, actor_bytes, request)
                replicas = self._loaded(new, patience)
                self._keep(new)  # from here on the new version is current, whatever dies
                self.serving = new, replicas
                self._retire(list(old.values()))
                return ""
            except Refused as refused:
                return str(refused)
            finally:
                self._active, self.swapping = time.monotonic(), False

    @ray.method(concurrency_group="state")
    def close(self) -> None:
        """End all actors of the pool but this one, which whoever asked ends then."""
        self._end_all()

    def _end_all(self) -> None:
        self.closing = True
        self._changing.acquire(timeout=10.0)  # and never let go: nothing is started any more
        kv_delete(self._key(), NAMESPACE)
        for name in self._named():
            _kill(name)

    # -- what is kept, and found again

    def _key(self) -> str:
        return f"pool/{self.name}/{self.birth}"

    def _keep(self, current: Current) -> None:
        kv_put(self._key(), json.dumps(asdict(current)).encode(), NAMESPACE)

    def _kept(self) -> Current | None:
        text = kv_get(self._key(), NAMESPACE)
        if text is None:
            return None
        kept = json.loads(text)
        return Current(**{**kept, "plan": PoolPlan(**kept["plan"])})

    def _named(self) -> list[str]:
        """The names of the shard actors of pools of this name, also of an earlier one."""
        there = ray.util.list_named_actors(all_namespaces=True)
        shards = [actor["name"] for actor in there if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{self.name}/")]
        return sorted(name for name in shards if name != keeper_name(self.name))

    def _label(self, current: Current) -> str:
        return f"{self.name}/{self.birth}-{current.number}"

    def _recovered(self, current: Current) -> Replicas:
        """The actors of the current version: the last started in each place, and new ones for the rest. Others of the name end."""
        found: Replicas = {}
        for name in sorted(self._named(), key=lambda name: _parsed(name)[1], reverse=True):
            place, start = _parsed(name)
            actor = _named_actor(name) if name.startswith(f"{self._label(current)}/") and place not in found else None
            if actor is not None:
                found[place] = Replica(actor, name, start)
            else:
                _kill(name)
        return found | {place: self._start(current, place, 0) for place in _places(current) if place not in found}

    def _end_leftovers(self) -> None:
        """End actors that are of no replica, as a swap leaves that died with an earlier process of this keeper."""
        mine = {replica.name for replica in self.serving[1].values()}
        for name in self._named():
            if name not in mine:
                _kill(name)

    # -- starting and ending

    def _start(self, current: Current, place: Place, start: int, node: str = "") -> Replica:
        name = f"{self._label(current)}/{place[0]}/{place[1]}/{start}/{uuid.uuid4().hex[:8]}"  # never that of one that is being ended
        return Replica(start_actor(current.plan, place[0], current.actor_bytes[place[0]], name, node), name, start)

    def _loaded(self, new: Current, patience: float) -> Replicas:
        """The actors of a version, loaded; Refused, and none of them left, where they cannot be."""
        self._end_leftovers()
        replicas = {place: self._start(new, place, 0) for place in _places(new)}
        try:
            self._await(replicas, patience)
        except Refused:
            _end(list(replicas.values()))
            raise
        return replicas

    def _await(self, replicas: Replicas, patience: float) -> None:
        """Wait until all are loaded; at the end of `patience`, one of each shard will do. Refused otherwise, or where one cannot be."""
        end = time.monotonic() + patience
        while not all(replica.state == "ready" for replica in replicas.values()):
            self._ask(replicas)
            time.sleep(0.05)
            fault = next((replica.fault or "an actor died" for replica in replicas.values() if replica.state == "dead"), "")
            if fault or self.closing:
                raise Refused(fault or "the pool is being closed")
            if time.monotonic() > end:
                without = {shard for shard, _ in replicas} - {shard for (shard, _), r in replicas.items() if r.state == "ready"}
                if without:
                    raise Refused(f"shard {min(without)} was not loaded in {patience:.0f} s: no node may have room beside the old actors")
                return

    def _retire(self, old: list[Replica]) -> None:
        """Have them answer no new search; those that cannot be told end at once, the others when their calls are done."""
        told = {replica.actor.retire.remote(): replica for replica in old}
        ray.wait(list(told), num_returns=len(told), timeout=5.0)
        deaf = [replica for ref, replica in told.items() if not _is_there(ref)]
        _end(deaf)
        left = [replica for replica in old if replica not in deaf]
        threading.Thread(target=_drain, args=(left,), daemon=True).start()

    # -- looking after them

    def _watch(self) -> None:
        while not self.closing:
            try:
                self._look()
            except Exception:  # a look that failed is no reason to look no more
                traceback.print_exc()
            time.sleep(_LOOK_S)
        time.sleep(10.0)  # whoever asked for the end has died before it ended this actor too
        _kill(keeper_name(self.name))

    def _look(self) -> None:
        current, replicas = self.serving
        self._ask(replicas)
        asked_of = {shard for (shard, _), replica in replicas.items() if replica.state == "ready"}
        if self.swapping or len(asked_of) < len(current.actor_bytes):
            self._active = time.monotonic()  # who is being turned, or cannot be asked, is not idle
        if self.idle_timeout and self._idle() > self.idle_timeout:
            self._end_all()
            _kill(keeper_name(self.name))
        elif self._changing.acquire(blocking=False):
            try:
                if not self.closing:
                    self._replace_dead()
                    self._move_one()
            finally:
                self._changing.release()

    def _ask(self, replicas: Replicas) -> None:
        """Ask each actor how it is, and note what those say that answer within a second; a question stays open until it is answered."""
        for replica in replicas.values():
            if replica.asked is None and replica.state != "dead":
                replica.asked = replica.actor.health.remote()
        asked = {replica.asked: replica for replica in replicas.values() if replica.asked is not None}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S) if asked else ([], [])
        for ref in done:
            _note(asked[ref], ref)
        for ref in late:
            if asked[ref].state == "ready":
                asked[ref].state = "away"

    def _idle(self) -> float:
        """Seconds since the last call of a shard actor, or since the pool could first be asked, or was turned."""
        idle = [replica.health["idle_s"] for replica in self.serving[1].values() if replica.state == "ready"]
        return min([time.monotonic() - self._active, *idle])

    def _replace_dead(self) -> None:
        """Start anew what Ray does not bring back: an actor that was killed for good, or whose start failed a while ago."""
        current, replicas = self.serving
        for place, replica in list(replicas.items()):
            if replica.state == "dead" and (not replica.fault or time.monotonic() - replica.since > _RETRY_S):
                new = self._start(current, place, replica.start + 1)
                new.fault = replica.fault
                self._put(place, new)

    def _move_one(self) -> None:
        """Move one replica to a node that has come, where that spreads them better; the old actor serves until the new one is loaded."""
        current, replicas = self.serving
        if time.monotonic() < self._no_move_before or any(replica.state != "ready" for replica in replicas.values()):
            return
        nodes = [node["NodeID"] for node in shard_nodes(current.plan.gpu)]
        move = next_move({place: replica.health["node"] for place, replica in replicas.items()}, nodes)
        if move is None:
            return
        place, node = move
        old = replicas[place]
        new = self._start(current, place, old.start + 1, node)
        try:
            self._await({place: new}, _MOVE_S)
            if new.health["node"] != node:
                raise Refused("it was placed elsewhere")
        except Refused:
            _end([new])
            self._no_move_before = time.monotonic() + 10 * _RETRY_S
            return
        self._put(place, new)
        self._retire([old])

    def _put(self, place: Place, new: Replica) -> None:
        current, replicas = self.serving
        self.serving = current, {**replicas, place: new}


def _places(current: Current) -> list[Place]:
    """The places of a version as they are to be filled where there is not room for all: one replica of every shard first."""
    return [(shard, replica) for replica in range(current.plan.replicas) for shard in range(len(current.actor_bytes))]


def keeper_name(name: str) -> str:
    """The name of the actor that keeps the pool `name`."""
    return f"{name}/keeper"


def start_keeper(name: str, birth: str, plan: PoolPlan, actor_bytes: list[int], idle_timeout: float) -> Any:
    """Start the keeper of a new pool; ValueError where there is one of the name. `birth` tells pools of one name apart."""
    options: dict[str, Any] = {
        "num_cpus": 0,
        "name": keeper_name(name),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": -1,
        "concurrency_groups": {"state": 8, "change": 1},
    }
    return ray.remote(**options)(PoolKeeper).remote(name, birth, plan, actor_bytes, idle_timeout)


def _note(replica: Replica, ref: Any) -> None:
    replica.asked = None
    try:
        replica.health = ray.get(ref)
        replica.state, replica.fault = "ready", ""
    except ActorDiedError as error:
        replica.state, replica.since = "dead", time.monotonic()
        replica.fault = why(error) if "creation task" in str(error) else ""
    except (ActorUnavailableError, RayError):
        replica.state = "away" if replica.state != "loading" else "loading"


def _drain(replicas: list[Replica]) -> None:
    """End retired actors once nobody has asked them for a while; a caller that comes later begins its block anew."""
    end = time.monotonic() + _DRAIN_S
    while replicas and time.monotonic() < end:
        time.sleep(_LOOK_S / 2)
        asked = [(replica, replica.actor.health.remote()) for replica in replicas]
        ray.wait([ref for _, ref in asked], num_returns=len(asked), timeout=_LOOK_S)
        quiet = [replica for replica, ref in asked if _is_there(ref) and ray.get(ref)["idle_s"] > _QUIET_S]
        _end(quiet)
        replicas = [replica for replica in replicas if replica not in quiet]
    _end(replicas)


def _is_there(ref: Any) -> bool:
    """Whether an answer has come that is no error."""
    try:
        ray.get(ref, timeout=0)
        return True
    except RayError:
        return False


def _end(replicas: list[Replica]) -> None:
    for replica in replicas:
        ray.kill(replica.actor, no_restart=True)


def _named_actor(name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def _kill(name: str) -> None:
    actor = _named_actor(name)
    if actor is not None:
        ray.kill(actor, no_restart=True)


def _parsed(name: str) -> tuple[Place, int]:
    """The place of an actor, and how many have been started there before it, from its name: NAME/VERSION/SHARD/REPLICA/START/ANY."""
    shard, replica, start = map(int, name.split("/")[-4:-1])
    return (shard, replica), start
