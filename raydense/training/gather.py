"""Gathers the rows of a tensor from all workers, as cross-batch negatives are."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# PyTorch 2.13's name of what was `reduce_scatter_tensor`.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Gather(torch.autograd.Function):
    """The concatenated tensors of all workers; the gradient of each is summed over workers and returned to its worker."""

    @staticmethod
    def forward(context: Any, mine: Tensor) -> Tensor:
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        given = gradients[0].contiguous()
        mine = given.new_empty(len(given) // dist.get_world_size(), *given.shape[1:])
        _reduce_scatter(mine, given)
        return mine


def gather(mine: Tensor) -> Tensor:
    """All workers' rows [workers * n, ...] from this worker's [n, ...], with their gradients; of one worker alone its own."""
    return _Gather.apply(mine) if dist.is_initialized() and dist.get_world_size() > 1 else mine
