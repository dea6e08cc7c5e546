"""Runs the workers of a training by Ray Train, in a thread of the driver."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

from raydense.errors import InputError
from raydense.runtime.allocator import cpu_worker_env
from raydense.runtime.network import network_env
from raydense.runtime.ray_internals import trainer_type
from raydense.runtime.session import joins_cluster
from raydense.storage import WORK, Place
from raydense.training.left_threads import leave
from raydense.training.loop import Job, train_worker
from raydense.training.notice import ask_to_end
from raydense.training.registered import RUN

# Ray Train polls its workers at this interval: it bounds the delay of a report, and of the end.
_LOOK_EVERY_S = "0.25"


class Workers(threading.Thread):
    """Runs Ray Train's fit in a thread: the main thread shows progress, and handles Ctrl-C, which fit would capture."""

    def __init__(self, job: Job, gpu: bool) -> None:
        super().__init__(name="fit", daemon=True)
        self._job, self._gpu = job, gpu
        self._result: dict[str, Any] = {}
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = _fit(self._job, self._gpu)
        except BaseException as error:  # raised again by outcome(), in the main thread
            self._error = error

    def outcome(self) -> dict[str, Any]:
        """What worker 0 returned; raises what went wrong."""
        if self._error is not None:
            raise self._error
        if "fault" in self._result:
            raise InputError(*self._result["fault"])
        return self._result


def leave_working(workers: Workers, output: Place) -> None:
    """Where the driver ends before its workers: ask them to end after their step."""
    if workers.is_alive():
        leave(output, workers)
        with suppress(OSError):
            ask_to_end(output / WORK)


def _fit(job: Job, gpu: bool) -> dict[str, Any]:
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", _LOOK_EVERY_S)
    os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
    if not joins_cluster():  # an embedded Ray is never preempted: no actor needed for that
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    each = {"CPU": job.settings.cpus_per_worker} | ({"GPU": 1.0} if gpu else {})
    # otherwise idle threads keep their cores busy, and two trainings on one machine take ten times as long as one
    env = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"), **network_env(), **_allocator(job, gpu)}
    trainer = trainer_type()(
        lambda: train_worker(job),
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=job.settings.workers, use_gpu=gpu, resources_per_worker=each, accelerator_type=job.settings.accelerator or None
        ),
        run_config=RunConfig(  # type: ignore[call-arg]  # it is of another class where types are checked
            name=RUN,
            **job.shared.for_ray(),
            worker_runtime_env={"env_vars": env},
            failure_config=FailureConfig(max_failures=job.settings.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    result: Any = trainer.fit()
    return result.return_value


def _allocator(job: Job, gpu: bool) -> dict[str, str]:
    """The environment of the workers' allocator; with activation checkpointing it is glibc's, since `give_memory_back` sets glibc up."""
    return {} if gpu or job.settings.activation_checkpointing else cpu_worker_env()
