"""Named pools from the caller's side: lists them, reads their status and table of actors, and closes them."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError

from raydense.errors import InputError
from raydense.retrieval.controller import controller_name
from raydense.retrieval.shard_actor import NAMESPACE
from raydense.retrieval.versions import Table, Version, Versions
from raydense.runtime.progress import say
from raydense.runtime.session import ensure_ray, joins_cluster

_REPORT_AFTER_S = 30.0
_LOOK_S = 0.1


def pools() -> list[str]:
    """The names of the pools on the cluster."""
    check_cluster("pools")
    ensure_ray()
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix := controller_name("")))


def pool_status(name: str) -> dict[str, Any]:
    """As `SearchPool.status`, of the pool `name`, also while its actors are not loaded; InputError if there is none."""
    check_name(name)
    ensure_ray()
    status: dict[str, Any] = asked(name, "status")
    return status


def close_pool(name: str) -> None:
    """As `SearchPool.close`, of the pool `name`, also while its actors are not loaded; InputError if there is none."""
    check_name(name)
    ensure_ray()
    controller = _controller(name)
    asked(name, "close")
    ray.kill(controller, no_restart=True)


def _controller(name: str) -> Any:
    try:
        return ray.get_actor(controller_name(name), namespace=NAMESPACE)
    except ValueError:
        raise InputError(
            f"no search pool of the name {name!r}", "name", "start it with `raydense pool start`, or SearchPool.start"
        ) from None


def asked(name: str, method: str, *args: Any, late: str = "") -> Any:
    """The result of a method of the pool's controller; logs `late` if it takes long. InputError if there is no such pool, or it ends meanwhile."""
    try:
        answer = getattr(_controller(name), method).remote(*args)
        if late and not ray.wait([answer], timeout=_REPORT_AFTER_S)[0]:
            say(late)
        return ray.get(answer)
    except (RayActorError, OutOfMemoryError) as error:
        raise InputError(f"the search pool {name!r} was closed", "name", "start it again") from error


def versions_of(name: str, pinned: bool) -> Versions:
    """The versions of the pool `name`; waits until each shard has a loaded actor. InputError if there is no such pool, or a shard cannot load."""

    def look() -> Table:
        begun, reported = time.monotonic(), False
        while True:
            table: Table = asked(name, "table")
            if all(table.actors):
                return table
            if table.fault:
                raise InputError(table.fault, f"search pool {name!r}", "start it again")
            if not reported and time.monotonic() - begun > _REPORT_AFTER_S:
                reported = True
                say(f"search: waits for the actors of the pool {name!r} to start and load {table.plan.index}")
            time.sleep(_LOOK_S)

    return Versions(Version(look()), look, pinned)


def check_name(name: str, detached: bool = True) -> None:
    """InputError if `name` cannot name a pool, or there is no cluster for one that is to outlive its job."""
    if not name or "/" in name:
        raise InputError(f"{name!r} cannot name a pool", "name", "give one without a slash")
    if detached:
        check_cluster(name)


def check_cluster(name: str) -> None:
    if not ray.is_initialized() and not joins_cluster():
        what = "a pool with a name outlives its job, and so needs a Ray cluster that does"
        raise InputError(what, name, "give its --address, or set RAY_ADDRESS")
