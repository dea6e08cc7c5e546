"""The number of model actors of a pipeline, and the resources that each of them claims."""

from __future__ import annotations

from dataclasses import dataclass

from raydense.errors import InputError
from raydense.inference.settings import Spread
from raydense.runtime.accelerators import no_such_kind, nodes_of
from raydense.runtime.ray_internals import free_by_node
from raydense.runtime.session import autoscales, joins_cluster

TOKENISE_CPUS = 0.5  # that a tokenise task claims


@dataclass(frozen=True)
class Layout:
    """From `fewest` to `most` actors, `first` of them at the start, each with `gpus` or `cpus`.

    On the CPU an actor computes in `threads` threads; 0 means its share of the cores of its machine, which has `per_node` actors.
    """

    fewest: int
    first: int
    most: int
    gpus: float
    cpus: float
    per_node: int
    threads: int = 0
    background: bool = False

    @classmethod
    def alone(cls, gpu: bool | None) -> Layout:
        """That of a process which is no actor: with a GPU or without, by default with one where torch sees it.

        InputError if it is to have a GPU, and torch sees none.
        """
        import torch

        sees = gpu is not False and torch.cuda.is_available()
        if gpu and not sees:
            fix = "install a torch with CUDA that fits the driver, or give the process no GPU"
            raise InputError("the process is to compute on a GPU, and torch sees none", "", fix)
        return cls(fewest=1, first=1, most=1, gpus=float(sees), cpus=1.0, per_node=1)

    @classmethod
    def of(cls, spread: Spread, pending: int) -> Layout:
        """The layout for `pending` files on the running cluster; an actor on the CPU of a cluster uses as many cores as it claims.

        InputError if no node has the resources that an actor claims, and the cluster adds no nodes.
        """
        import ray

        found, unreserved, joined = nodes_of(spread.accelerator, ray.nodes()), free_by_node(), joins_cluster()
        ids, alive, nodes = [node["NodeID"] for node in found], [node["Resources"] for node in found], len(found)
        has_gpus = bool(spread.accelerator) or ray.cluster_resources().get("GPU", 0.0) > 0
        gpus = spread.gpus_per_actor if spread.gpus_per_actor >= 0 else float(has_gpus)
        if not nodes and not (joined and autoscales()):
            raise no_such_kind(spread.accelerator, ray.nodes())
        everywhere = [node["Resources"] for node in nodes_of("", ray.nodes())]
        if (lacking := lack(alive, gpus, spread.cpus_per_actor) or lack_to_tokenise(everywhere)) and not (joined and autoscales()):
            raise lacking
        fit = capacity(alive, gpus, spread.cpus_per_actor)
        free = capacity([unreserved.get(node, {}) for node in ids], gpus, spread.cpus_per_actor)
        at_once = bool(gpus and spread.concurrency[1]) and joined and autoscales()
        fewest, first, most = sizes(spread.concurrency, pending, fit, free, fit if gpus else nodes, joined, at_once)
        threads = max(1, int(spread.cpus_per_actor)) if joined else 0
        return cls(fewest, first, most, gpus, spread.cpus_per_actor, -(-most // max(1, nodes)), threads, spread.background)


def sizes(concurrency: tuple[int, int], pending: int, fit: int, free: int, apart: int, joined: bool, at_once: bool) -> tuple[int, int, int]:
    """The fewest, first and most actors for `pending` files, of which `fit` actors fit on the nodes that are there, `free` of them now.

    `apart` actors share no core or GPU: as many as there are on one machine, where an actor on the CPU uses every core. A cluster may
    grow when more actors wait than fit on it, so there it is one per file, and the pool starts at what is free: it would add
    one actor at a time. With `at_once` it starts with the most: what Ray Data asks the autoscaler for, twice what is there, is refused as a whole where it
    is more than the cluster may have, while of actors that wait as many get a node as may.
    """
    low, high = concurrency
    wanted = high or (pending if joined else max(apart, low))
    # a pool whose minimum does not fit would wait for ever, and so would the tokenise tasks if actors hold all CPUs
    most = max(1, min(wanted, pending) if joined else min(wanted, pending, fit))
    fewest = max(1, min(low, most, fit))
    # Ray takes no waiting actor back: on CPUs, with what others hold, those that run could leave none to tokenise
    return fewest, most if at_once else max(fewest, min(most, fit, free)), most


def capacity(nodes: list[dict[str, float]], gpus: float, cpus: float) -> int:
    """The number of actors that fit on nodes with these resources; on CPUs one node keeps enough CPU for the tokenise tasks."""
    kind, claimed = ("GPU", gpus) if gpus else ("CPU", cpus)
    has = [node.get(kind, 0.0) for node in nodes]
    fit = [int(one / claimed) for one in has]
    left = [most - int((one - TOKENISE_CPUS) / claimed) for one, most in zip(has, fit, strict=True) if one >= TOKENISE_CPUS]
    return sum(fit) - (0 if gpus else min(left, default=0))


def lack(nodes: list[dict[str, float]], gpus: float, cpus: float) -> InputError | None:
    """The error if no node with these resources has the GPUs, or the CPUs, that an actor claims.

    An actor that leaves no CPU for the tokenise tasks would wait for them for ever.
    """
    kind, claimed = ("GPU", gpus) if gpus else ("CPU", cpus)
    has = [node.get(kind, 0.0) for node in nodes]
    if max(has, default=0.0) < claimed:
        what = f"and of {len(nodes)} nodes none has more than {max(has, default=0.0):g}"
    elif not gpus and sum(has) < claimed + TOKENISE_CPUS:
        what = f"which leaves {sum(has) - claimed:g} to tokenise, and that needs {TOKENISE_CPUS:g}"
    else:
        return None
    return InputError(
        f"an actor is to have {claimed:g} {kind}s, {what}", f"{kind.lower()}s_per_actor", "give less, or nodes that have them"
    )


def lack_to_tokenise(nodes: list[dict[str, float]]) -> InputError | None:
    """The error if no node with these resources has the CPUs that a tokenise task claims, as where all have GPUs alone."""
    most = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
    if most >= TOKENISE_CPUS:
        return None
    what = f"a task that tokenises is to have {TOKENISE_CPUS:g} CPUs, and of {len(nodes)} nodes none has more than {most:g}"
    return InputError(what, fix="start Ray on one of them with --num-cpus")
