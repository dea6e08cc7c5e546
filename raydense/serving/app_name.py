"""Who has the name of an app: on a cluster one process that runs, so that no command takes over, or ends, the app of another."""

from __future__ import annotations

import ray
from ray import serve

from raydense.errors import InputError
from raydense.retrieval.shard_actor import NAMESPACE
from raydense.runtime.ray_internals import driver_of, kv_add, kv_delete, kv_get, kv_put


def take_name(name: str) -> bool:
    """Have the name for this process; whether an app of it is there, which a process that was killed left, or this one started.

    InputError if another process that runs has the name, or an app that was started in another way.
    """
    mine = ray.get_runtime_context().get_job_id()
    new = kv_add(_key(name), mine.encode(), NAMESPACE)
    owner, _, deployed = (kv_get(_key(name), NAMESPACE) or b"").decode().partition(" ")
    if owner != mine and (driver := driver_of(owner)):
        raise InputError(f"{driver} serves an app of this name", f"--name {name}", "give another, or end that one")
    there = serve.status().applications.get(name)
    if there and (new or deployed not in ("", str(there.last_deployed_time_s))):
        if new:
            release_name(name)
        what = "an app of this name runs, which no `raydense serve` started"
        raise InputError(what, f"--name {name}", "give another, or end that one; `serve shutdown` ends all apps")
    kv_put(_key(name), mine.encode(), NAMESPACE)
    return there is not None


def keep_name(name: str) -> None:
    """Record that the app of this name that runs now is of this process: not one that is deployed by others after the process was killed."""
    mine, deployed = ray.get_runtime_context().get_job_id(), serve.status().applications[name].last_deployed_time_s
    kv_put(_key(name), f"{mine} {deployed}".encode(), NAMESPACE)


def release_name(name: str) -> None:
    """Leave the name to others."""
    kv_delete(_key(name), NAMESPACE)


def _key(name: str) -> str:
    return f"app/{name}"
