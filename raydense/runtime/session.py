"""Joins the Ray cluster of a job, or starts an embedded Ray on this machine; and asks whether the cluster autoscales."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from contextlib import nullcontext
from typing import Any

from raydense.errors import InputError
from raydense.runtime.limits import cpu_limit, memory_free, memory_total
from raydense.runtime.own_ray import watch_own_ray
from raydense.runtime.progress import duration, say
from raydense.runtime.ray_internals import (
    adds_nodes,
    end_half_started,
    in_groups_of_their_own,
    memory_seen,
    on_loopback,
    only_on_loopback,
    only_what_works,
    own_sigterm,
    quiet_driver,
    store_memory,
)
from raydense.runtime.verbosity import is_verbose, limit_logs

_LOGICAL_CPUS = 4
_AUTOSCALER_S = 20.0
_ANSWERS_S = 10.0
_STARTS = 3  # of a Ray that gives up
_SMALLEST_STORE = 80 << 20
TOKEN = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's"
SHARERS = "RAYDENSE_SHARERS"  # how many processes share the cores of a machine; set by what starts several


def physical_cpus() -> int:
    """The cores that this process may use: those of its container, and only its share if several use these, as the trials of a sweep do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cpu_limit())) // int(os.environ.get(SHARERS, 1)))


def joins_cluster() -> bool:
    """Whether this process joins a running cluster instead of starting a Ray of its own on this machine."""
    return os.environ.get("RAY_ADDRESS") not in (None, "", "local")


def ensure_ray() -> None:
    """Connect to RAY_ADDRESS (set by Ray inside a job, and by --address), otherwise start a local Ray; at most once per process.

    InputError if no cluster answers at the address, as one does not without its token, or none starts in time.
    The local Ray listens only at the loopback. It has at least four logical CPUs, since a pipeline of actors with fewer never starts.
    """
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # of calls whose result nobody reads, as those for Ray Data's statistics; a stage reads the result of every call that it makes
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Ray never lets its driver in if the first workers take longer than this to start, as they may on a busy machine; its default is a minute
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "180")
    if os.nice(0) > 0:  # Ray raises the niceness of workers by 15: under `nice` that ends at 19, the last to get a CPU
        os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    if ray.is_initialized():
        return
    with nullcontext() if is_verbose() else quiet_driver(), own_sigterm():
        _connect()
    quiet_data()


def _connect() -> None:
    import ray
    from ray.exceptions import AuthenticationError

    level = logging.INFO if is_verbose() else logging.WARNING
    common: dict[str, Any] = {"logging_level": level, "log_to_driver": is_verbose(), "configure_logging": True}
    if joins_cluster():
        where = os.environ["RAY_ADDRESS"]
        _refuse_url(where)
        _refuse_unreachable(where)
        try:
            with on_loopback() if only_on_loopback(where) else nullcontext():
                ray.init(address=where, **common)
        except AuthenticationError as error:
            raise InputError("RAY_AUTH_MODE=token is set, and no token", where, TOKEN) from error
        except (ConnectionError, ValueError) as error:
            raise _not_joined(error, where) from error
    else:
        _start(**common)


def _not_joined(error: Exception, address: str) -> InputError:
    if "No node info found" in str(error.__cause__):  # Ray looks for a raylet among the processes of this machine
        fix = "run this on a node, or `raydense submit` it to the address of the cluster's jobs, as http://HEAD:8265"
        return InputError("a Ray cluster answers, and this machine is no node of it", address, fix)
    # without the token Ray says no more than that it failed to connect
    return InputError(f"no Ray cluster answers ({error})", address, f"check --address and RAY_ADDRESS; if it requires a token, {TOKEN}")


def _refuse_url(address: str) -> None:
    """InputError for an address with a scheme: Ray takes it for one of Ray Client, by which no process can ask the cluster for its state."""
    if "://" in address:
        fix = "run this on a node, with --address HEAD:6379, or `raydense submit` it to the address of the cluster's jobs, as http://HEAD:8265"
        raise InputError("raydense joins a cluster from one of its nodes, not by Ray Client or a URL", address.rpartition("@")[2], fix)


def _refuse_unreachable(address: str) -> None:
    """InputError unless something listens at an address of a host and a port: Ray looks for one that does not answer for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_S).close()
    except OSError as error:
        raise InputError(f"no Ray cluster answers ({error})", address, "check --address and RAY_ADDRESS") from error


def _start(**common: Any) -> None:
    """Start a Ray on this machine; try again if it times out, as it does on a very busy machine; InputError after the last try."""
    import ray

    common |= _memory()
    for attempt in range(1, _STARTS + 1):
        begun = time.monotonic()
        try:
            with on_loopback(), only_what_works(), in_groups_of_their_own():
                ray.init(address="local", num_cpus=max(_LOGICAL_CPUS, physical_cpus()), include_dashboard=False, **common)
            return watch_own_ray()
        except Exception as error:  # Ray raises no class of its own
            if "timed out during startup" not in str(error):
                raise
            end_half_started(error)
            if attempt == _STARTS:
                what = f"did not start in time in {_STARTS} attempts, as happens on a very busy machine"
                raise InputError(what, "Ray", "run the same command again") from error
        took = duration(time.monotonic() - begun)
        say(f"Ray did not start within {took}, as happens on a very busy machine: attempt {attempt + 1} of {_STARTS}")


def _memory() -> dict[str, int]:
    """What Ray is told to take of the memory, where it does not see a limit: `ulimit -v`, or a control group inside of the outermost one."""
    space, inside = resource.getrlimit(resource.RLIMIT_AS)[0], memory_total() < memory_seen()
    if space == resource.RLIM_INFINITY and not inside:
        return {}
    free = memory_free()
    store = max(_SMALLEST_STORE, store_memory(free))
    if space != resource.RLIM_INFINITY:
        store = min(store, max(_SMALLEST_STORE, space // 8))  # the raylet maps it twice
    return {"object_store_memory": store} | ({"_memory": free - store} if inside else {})


def quiet_data() -> None:
    """Turn off Ray Data's progress bars in this process, and its notes unless verbose: the stages show their progress."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = is_verbose()
    limit_logs("ray.data")
    # Ray warns once that the bars are off; this marks the warning as given.
    ray.util.log_once("ray_data_progress_manager_disabled")


def autoscales() -> bool:
    """Whether this cluster adds nodes by itself, by Ray's autoscaler of either version.

    On a cluster that was started for a job, the autoscaler may start a little later than the job.
    """
    end = time.monotonic() + (_AUTOSCALER_S if joins_cluster() else 0)
    while (adds := adds_nodes()) is None and time.monotonic() < end:
        time.sleep(0.5)
    return bool(adds)
