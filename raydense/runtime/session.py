"""Joins the Ray that a job was submitted to, or starts an embedded one on this machine; and asks whether nodes come to it by themselves."""

from __future__ import annotations

import logging
import os
import time
from contextlib import nullcontext
from typing import Any

from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.runtime.ray_internals import autoscaler_state, end_half_started, on_loopback, only_on_loopback, quiet_token_notes

_LOGICAL_CPUS = 4
_AUTOSCALER_S = 20.0
_STARTS = 3  # of a Ray that gives up
SHARERS = "RAYDENSE_SHARERS"  # how many share the cores of a machine; set for the processes of one by what starts several


def physical_cpus() -> int:
    """The cores that this process may use: its part, where several share the machine, as the trials of a sweep at work at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get(SHARERS, 1)))


def joins_cluster() -> bool:
    """Whether this process works on a cluster that others started, and not on a Ray of its own on this machine."""
    return os.environ.get("RAY_ADDRESS") not in (None, "", "local")


def ensure_ray() -> None:
    """Connect to RAY_ADDRESS (which Ray sets inside a job, and --address here), else start a local Ray; at most once a process.

    InputError where no cluster answers at the address, or none can be started in time.
    The embedded Ray listens at the loopback alone. It counts at least four logical CPUs, since a pipeline of actors with fewer never starts.
    """
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # what nobody waits for, as Ray Data's own statistics where their actor was lost: a stage hears of all that it waits for
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    import ray

    if ray.is_initialized():
        return
    quiet_token_notes()
    common: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False, "configure_logging": True}
    if joins_cluster():
        where = os.environ["RAY_ADDRESS"]
        try:
            with on_loopback() if only_on_loopback(where) else nullcontext():
                ray.init(address=where, **common)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"no Ray cluster answers ({error})", where, "check --address and RAY_ADDRESS") from error
    else:
        _start(**common)
    quiet_data()


def _start(**common: Any) -> None:
    """Start a Ray of this machine alone; again where it gave up, as it does on a very busy machine, and InputError at last."""
    import ray

    for left in reversed(range(_STARTS)):
        try:
            with on_loopback():
                ray.init(address="local", num_cpus=max(_LOGICAL_CPUS, physical_cpus()), include_dashboard=False, **common)
            return
        except Exception as error:  # Ray raises no class of its own
            if "timed out during startup" not in str(error):
                raise
            end_half_started(error)
            if not left:
                raise InputError("did not start in time, as happens on a very busy machine", "Ray", "run the same command again") from error
        say("Ray did not start in time, as happens on a very busy machine: tries again")


def quiet_data() -> None:
    """Keep Ray Data's bars and notes out of the way in this process: the stages show how far they are."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    # Ray would warn once that the bars are off; this says that it did.
    ray.util.log_once("ray_data_progress_manager_disabled")


def autoscales() -> bool:
    """Whether nodes come by themselves on this cluster: Ray's autoscaler (v2) has said something.

    On a cluster that a job came with, the autoscaler may start a little later than the job.
    """
    end = time.monotonic() + (_AUTOSCALER_S if joins_cluster() else 0)
    while not (said := autoscaler_state().autoscaler_state_version > 0) and time.monotonic() < end:
        time.sleep(0.5)
    return said
