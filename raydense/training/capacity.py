"""Checks that the workers of a training fit on the cluster: refuses what can never fit, and detects workers that wait for resources."""

from __future__ import annotations

import time

from raydense.errors import InputError
from raydense.runtime.accelerators import no_such_kind, nodes_of
from raydense.runtime.session import autoscales, ensure_ray, joins_cluster
from raydense.training.loop_settings import LoopSettings
from raydense.training.settings import refresh_of

_TOKENISE_CPUS = 0.5  # for the refresh: a task that tokenises
_REFRESH_CPUS = 1.0 + _TOKENISE_CPUS  # and an actor that encodes, where it has no GPU: with one it claims no CPU
_COMES_BACK_S = 60.0  # time for a lost node of a fixed cluster to return, for example after a restart of its machine


def require_capacity(settings: LoopSettings) -> bool:
    """Whether workers get a GPU each. InputError if the workers do not fit on a cluster that adds no nodes, or cannot train in this precision."""
    ensure_ray()
    gpu = _on_gpus(settings)
    if settings.precision == "fp16" and not gpu:
        raise InputError("fp16 does not train on a CPU", "precision", "use fp32 or bf16, or a GPU")
    end = time.monotonic() + (_COMES_BACK_S if joins_cluster() else 0)
    while lacking := _lack(settings, gpu):
        if joins_cluster() and autoscales():
            break
        if time.monotonic() >= end:
            raise lacking
        time.sleep(1)
    return gpu


def refresh_actors(settings: LoopSettings) -> int:
    """How many actors may find new negatives while the workers train, so that workers that start again find their place.

    0 means as many as there is work for: on a cluster that adds nodes, and on the CPUs of one machine, where there is one.
    """
    import ray

    gpu = _on_gpus(settings)
    if autoscales() if joins_cluster() else not gpu:
        return 0
    there = sum(node["Resources"].get("GPU" if gpu else "CPU", 0) for node in nodes_of(settings.accelerator, ray.nodes()))
    if gpu:
        return max(1, int(there) - settings.workers)
    left = _units(1 + there - _REFRESH_CPUS) - settings.workers * _units(settings.cpus_per_worker)
    return max(1, left // _units(1))


def _on_gpus(settings: LoopSettings) -> bool:
    import ray

    asked = settings.gpus_per_worker
    return asked == 1 if asked >= 0 else bool(settings.accelerator) or ray.cluster_resources().get("GPU", 0) >= 1


def _lack(settings: LoopSettings, gpu: bool) -> InputError | None:
    """As `lack`, of the nodes that are there and have the kind of GPU that is asked for."""
    import ray

    nodes = nodes_of(settings.accelerator, ray.nodes())
    return lack(settings, gpu, [node["Resources"] for node in nodes]) if nodes else no_such_kind(settings.accelerator, ray.nodes())


def lack(settings: LoopSettings, gpu: bool, nodes: list[dict[str, float]]) -> InputError | None:
    """The error if nodes with these resources cannot hold the workers, and in mode async the actors that find new negatives."""
    workers, each = settings.workers, {"CPU": settings.cpus_per_worker} | ({"GPU": 1.0} if gpu else {})
    refresh = refresh_of(settings)
    concurrent = refresh is not None and refresh.mode == "async"
    for name, amount in each.items():
        there = sum(node.get(name, 0.0) for node in nodes)
        more = {"CPU": _TOKENISE_CPUS if gpu else _REFRESH_CPUS, "GPU": 1.0}[name]
        if workers * _units(amount) + _units(more) * concurrent > _units(there):
            finds = f", and {more:g} for what finds negatives meanwhile," if concurrent else ""
            less = "--cpus-per-worker less" if name == "CPU" else "--gpus-per-worker 0"
            fix = f"give fewer workers, or {less}" + (", or --refresh.mode sync" if concurrent else "")
            return InputError(f"{workers} workers x {amount:g} {name}{finds} is more than the {there:g} here", "workers", fix)
    fit = sum(min(_units(node.get(name, 0.0)) // max(1, _units(amount)) for name, amount in each.items()) for node in nodes)
    if fit < workers:
        claims = " and ".join(f"{amount:g} {name}" for name, amount in each.items())
        what = f"{workers} workers, each with {claims} of one node: {fit} fit on the {len(nodes)} nodes here"
        return InputError(what, "workers", "give fewer workers, or --cpus-per-worker less")
    return None


def _units(amount: float) -> int:
    """An amount of a resource in the units that Ray counts in: floats would refuse what fits exactly."""
    return round(10_000 * amount)


def workers_wait(job: str) -> bool:
    """Whether the job waits for resources that it requested; the ids of its requests end with the job's id."""
    import ray

    asked = ray.util.placement_group_table()
    return any(one["state"] in ("PENDING", "RESCHEDULING") for name, one in asked.items() if name.endswith(job))
