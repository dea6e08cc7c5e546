"""Whether a cluster has room for the workers of a training: refused where it never will have, and said where they wait for it."""

from __future__ import annotations

import time

from raydense.errors import InputError
from raydense.progress import say
from raydense.ray_session import autoscales, ensure_ray, joins_cluster
from raydense.settings import Training, TrainSettings

_BESIDE_CPUS = 1.5  # an actor that encodes, and a task that tokenises for it
_COMES_BACK_S = 60.0  # a node of a fixed cluster that was lost, as where its machine is started again
_WAITS_S, _LOOK_S = 30.0, 5.0


def require_room(settings: Training) -> bool:
    """Whether workers get a GPU each. InputError where no node comes by itself and there is no room for the workers, or they cannot train so."""
    ensure_ray()
    import ray

    asked = settings.gpus_per_worker
    gpu = asked == 1 if asked >= 0 else ray.cluster_resources().get("GPU", 0) >= 1
    if settings.precision == "fp16" and not gpu:
        raise InputError("fp16 does not train on a CPU", "precision", "use fp32 or bf16, or a GPU")
    if not lack(settings, gpu, ray.cluster_resources()) or (joins_cluster() and autoscales()):
        return gpu
    end = time.monotonic() + (_COMES_BACK_S if joins_cluster() else 0)
    while lacking := lack(settings, gpu, ray.cluster_resources()):
        if time.monotonic() >= end:
            raise lacking
        time.sleep(1)
    return gpu


def lack(settings: Training, gpu: bool, there: dict[str, float]) -> InputError | None:
    """The fault where the resources of a whole cluster are too few for the workers, and for what finds negatives beside them."""
    beside = isinstance(settings, TrainSettings) and settings.refresh_every is not None and settings.refresh_mode == "async"
    for name, each, more in (("CPU", settings.cpus_per_worker, _BESIDE_CPUS), ("GPU", float(gpu), float(gpu))):
        if settings.workers * each + more * beside > there.get(name, 0):
            finds = f", and {more:g} for what finds negatives meanwhile," if beside else ""
            what = f"{settings.workers} workers x {each:g} {name}{finds} is more than the {there.get(name, 0):g} here"
            mend = "give fewer workers, or --cpus-per-worker less" + (", or --refresh-mode sync" if beside else "")
            return InputError(what, "workers", mend)
    return None


class Waiting:
    """Says that workers wait for room, at the start or after a node was lost: Ray Train asks for it without a word, for as long as it takes."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked, self._said = 0.0, False

    def look(self) -> None:
        """Look whether they wait; to be called often, until they are done."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        self._since = (self._since or now) if _wait() else None
        self._said = self._said and self._since is not None
        if self._since is not None and now - self._since > _WAITS_S and not self._said:
            self._said = True
            say("train: its workers wait for CPUs or GPUs that others hold, or for nodes that are to come (`ray status` tells)")


def _wait() -> bool:
    """Whether this job has asked for room that it was not given yet: the ids of what it asked for end with its own."""
    import ray
    from ray.exceptions import RpcError

    job = ray.get_runtime_context().get_job_id()
    try:
        asked = ray.util.placement_group_table()
    except RpcError:  # the head is away: it is asked again
        return False
    return any(one["state"] in ("PENDING", "RESCHEDULING") for name, one in asked.items() if name.endswith(job))
