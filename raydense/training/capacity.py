"""Checks that the workers of a training fit on the cluster: refuses what can never fit, and detects workers that wait for resources."""

from __future__ import annotations

import time

from raydense.errors import InputError
from raydense.runtime.accelerators import no_such_kind, nodes_of
from raydense.runtime.ray_internals import autoscaler_state, free_by_node
from raydense.runtime.session import autoscales, ensure_ray, joins_cluster
from raydense.runtime.waiting import requests_of
from raydense.training.loop_settings import LoopSettings
from raydense.training.settings import refresh_of

_TOKENISE_CPUS = 0.5  # for the refresh: a task that tokenises
_REFRESH_CPUS = 1.0 + _TOKENISE_CPUS  # and an actor that encodes, where it has no GPU: with one it claims no CPU
_COMES_BACK_S = 60.0  # time for a lost node to return, for example after a restart of its machine, or to be replaced
_HELD = 0.1  # of a resource in use; the actors of a pool claim less of a CPU, so that they avoid nodes without


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
        what = f"{workers} workers, each with {_words(each)} of one node: {fit} fit on the {len(nodes)} nodes here"
        return InputError(what, "workers", "give fewer workers, or --cpus-per-worker less")
    return None


def _words(each: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in each.items())


def _units(amount: float) -> int:
    """An amount of a resource in the units that Ray counts in: floats would refuse what fits exactly."""
    return round(10_000 * amount)


class Placing:
    """Whether the workers of a training wait for resources, and whether, on a cluster that adds nodes, no nodes will ever hold them.

    The maximum of such a cluster is in its autoscaler's configuration alone. Version 1 of the autoscaler does not report what it refuses.
    """

    def __init__(self, settings: LoopSettings, job: str) -> None:
        self._workers, self._job = settings.workers, job
        self._since: float | None = None  # since when the autoscaler has refused them
        self._fault: InputError | None = None

    def waits(self) -> bool:
        """Whether the job waits; called again and again by another thread than that of `refuse`, since it stops while the head is away."""
        import ray

        if not ray.is_initialized():  # the calls below would start one
            return False
        waiting = {name for name, one in ray.util.placement_group_table().items() if one["state"] in ("PENDING", "RESCHEDULING")}
        own = {name for name in waiting if name.endswith(self._job)}  # the ids of groups end with their job's
        since, self._since = self._since, None
        if own and (each := _refused(own, waiting)):
            self._since = since or time.monotonic()
            if time.monotonic() - self._since >= _COMES_BACK_S:
                what = f"the cluster's autoscaler has no nodes for {self._workers} workers, each with {_words(each)}, and no other work holds any"
                self._fault = InputError(what, "workers", "give fewer workers, or less for each, or allow more or larger nodes")
        return bool(own)

    def refuse(self) -> None:
        """InputError once the autoscaler has refused the workers for a minute, while nobody holds what they ask for.

        Where others hold some of it, the workers wait for their end.
        """
        if self._fault:
            raise self._fault


def _refused(own: set[str], waiting: set[str]) -> dict[str, float] | None:
    """What each worker of the `own` groups asks for, if the autoscaler refuses all groups that are `waiting`, and nobody holds anything of it."""
    refused = {group.details.partition(":")[0]: group for group in autoscaler_state().infeasible_gang_resource_requests}
    if waiting - refused.keys():  # nodes come for another group, and may be free after it
        return None
    each = requests_of(refused[min(own)])[0]
    return None if _held(each) else each


def _held(each: dict[str, float]) -> bool:
    """Whether a node that has all that a worker asks for has some of it in use."""
    import ray

    free = free_by_node()
    there = [node for node in nodes_of("", ray.nodes()) if all(name in node["Resources"] for name in each)]
    return any(node["Resources"][name] - free.get(node["NodeID"], {}).get(name, 0.0) > _HELD for node in there for name in each)
