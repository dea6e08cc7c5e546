"""Weights that are shared out over the workers of ZeRO 3: each has a part of every weight, and a placeholder where the weight was.

Outside DeepSpeed's own forward and backward, shapes and values must be asked for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Size, Tensor, nn
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled, set_hf_deepspeed_config, unset_hf_deepspeed_config

from raydense.errors import InputError


class _Stage3:
    """What transformers asks a configuration of DeepSpeed for; its own class for that needs accelerate, too."""

    def __init__(self, offload: bool) -> None:
        self.config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, **(offloading(3) if offload else {})}}

    def is_zero3(self) -> bool:
        return True


def offloading(zero: int) -> dict[str, Any]:
    """What DeepSpeed's configuration says of ZeRO 1, 2 or 3 where a GPU's share is kept in the machine's memory."""
    where = {"device": "cpu", "pin_memory": True}
    return {"offload_optimizer": where, **({"offload_param": where} if zero == 3 else {})}


@contextmanager
def sharing_out(offload: bool = False) -> Iterator[None]:
    """In the block, a model of transformers is made with its weights shared out, one module after another: no worker ever holds all.

    With `offload` each worker's share is in the machine's memory, not in its GPU's. Worker 0 reads the weights, from files mapped into memory.
    All workers load the same models at the same time, with torch's process group open and DeepSpeed imported. Modules that are made by
    other means have whole weights.
    """
    asked = _Stage3(offload)  # of which transformers keeps a weak reference
    set_hf_deepspeed_config(asked)
    try:
        yield
    finally:
        unset_hf_deepspeed_config()


def shares_out() -> bool:
    """Whether weights are shared out as they are loaded: in `sharing_out`."""
    return bool(is_deepspeed_zero3_enabled())


def full_shape(weight: Tensor) -> Size:
    """The shape of a weight, also where only a part of it is here."""
    return getattr(weight, "ds_shape", weight.shape)


def full_count(weights: Iterable[Tensor]) -> int:
    """The number of values in all weights, also where only parts of them are here."""
    return sum(full_shape(weight).numel() for weight in weights)


def is_sharded(weight: Tensor) -> bool:
    """Whether only a part of a weight is here."""
    return hasattr(weight, "ds_tensor")


@contextmanager
def gathered(*parts: nn.Module | nn.Parameter) -> Iterator[None]:
    """In the block the weights given, or of the modules given, are whole on every worker, to be read; all workers call it at the same time."""
    weights = [w for part in parts for w in ([part] if isinstance(part, nn.Parameter) else part.parameters()) if is_sharded(w)]
    if not weights:
        yield
        return
    from deepspeed.runtime.zero import GatheredParameters  # only here: it takes a second, and is there where weights are shared out

    with GatheredParameters(weights):
        yield


@contextmanager
def together() -> Iterator[None]:
    """An InputError in the block on one of the workers is raised on all of them, at its end; nothing in it may wait for other workers.

    One worker alone asks nobody: NCCL would begin for that.
    """
    fault = None
    try:
        yield
    except InputError as error:
        fault = error
    if dist.is_initialized() and dist.get_world_size() > 1:
        _raise_together(fault)
    elif fault:
        raise fault


class OnAllWorkers(InputError):
    """An error that all workers raise, so that none waits for another."""


def _raise_together(error: InputError | None) -> None:
    """Raise the first error that a worker has, on all of them: one that stopped alone would leave the others waiting for its weights."""
    errors: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error and error.args)
    found = next((args for args in errors if args), None)
    if found:
        raise OnAllWorkers(*found) from error
