"""Dropout for training on a CPU, where PyTorch's takes up to a fifth of a step: it draws one number after the other, and multiplies.

Here a number has 15 bits, four of a generator's 64, and what is dropped is masked bit by bit. A mask is drawn again in the backward pass instead of kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LEVELS = 2**15


def drawn_seed() -> Tensor:
    """A seed from torch's random state, so that whatever saves and restores that state has the same masks; int64 [1]."""
    return torch.randint(2**62, (1,))


@torch.library.custom_op("raydense::kept_bits", mutates_args=())
def kept_bits(seed: Tensor, shape: list[int], p: float) -> Tensor:
    """Masks of bits, int16 of `shape`: 0 with probability `p`, in steps of 1 / 32,768, and -1, which is all bits, otherwise."""
    count = math.prod(shape)
    bits = np.random.SFC64(int(seed)).random_raw((count + 3) // 4).view(np.int16)[:count]
    bits >>= 1  # -16,384 to 16,383
    np.subtract(round(p * _LEVELS) - _LEVELS // 2 - 1, bits, out=bits)  # negative where it is kept
    bits >>= 15
    return torch.from_numpy(bits).view(shape)


@kept_bits.register_fake
def _(seed: Tensor, shape: list[int], p: float) -> Tensor:
    return torch.empty(shape, dtype=torch.int16)


def drop_(values: Tensor, kept: Tensor) -> Tensor:
    """Set `values` (float32 or half precision) to 0 in place where the mask of bits is 0; they are not scaled."""
    if values.dtype == torch.float32:
        values.view(torch.int32).bitwise_and_(kept.to(torch.int32))
    else:
        values.view(torch.int16).bitwise_and_(kept)
    return values


class CpuDropout(nn.Dropout):
    """As nn.Dropout, whose numbers are others; on another device than a CPU it is nn.Dropout."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0 or input.device.type != "cpu" or input.dtype not in (torch.float32, torch.bfloat16):
            return super().forward(input)
        dropped: Tensor = _Dropped.apply(input, drawn_seed(), self.p)
        return dropped


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, seed: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.p = p
        return _dropped(values, seed, p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (seed,) = ctx.saved_tensors
        return _dropped(grad, seed, ctx.p), None, None


def _dropped(values: Tensor, seed: Tensor, p: float) -> Tensor:
    scaled = values.contiguous() * (1 / (1 - p))
    return drop_(scaled, kept_bits(seed, list(scaled.shape), p))
