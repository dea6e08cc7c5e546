"""Linear layers that autocast leaves in float32.

Those whose values leave fp16's range, as of T5's feed-forward layers: which they are, transformers says of its models
(`_keep_in_fp32_modules`). And a re-ranker's last layer, whose scores bf16 would round to 8 bits: many passages of a query would tie.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel


class Float32Linear(nn.Linear):
    """As nn.Linear; under autocast to fp16 it computes in float32, and gives float32. bf16 has float32's range, and stays as it is."""

    in_float32: ClassVar[tuple[torch.dtype, ...]] = (torch.float16,)

    def forward(self, input: Tensor) -> Tensor:
        kind = input.device.type
        if not (torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) in self.in_float32):
            return super().forward(input)
        with torch.autocast(kind, enabled=False):
            return linear(input.float(), self.weight, self.bias)


class ScoreLinear(Float32Linear):
    """As nn.Linear; it computes in float32, and gives float32: under autocast, and where DeepSpeed has cast the weights."""

    in_float32 = (torch.float16, torch.bfloat16)

    def forward(self, input: Tensor) -> Tensor:
        dtype = torch.promote_types(input.dtype, torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            return linear(input.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


def keep_in_float32(model: PreTrainedModel) -> None:
    """Make Float32Linear of the linear layers that transformers keeps in float32."""
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in kept and isinstance(layer, nn.Linear):
            layer.__class__ = Float32Linear


def keep_score_in_float32(model: PreTrainedModel) -> None:
    """Make ScoreLinear of the last linear layer of the head, which gives the score of a pair.

    Some classes, as XLM-RoBERTa's, register the head before the encoder.
    """
    encoder = set(model.base_model.modules())
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    [*_, last] = [layer for layer in linear if layer not in encoder] or linear
    last.__class__ = ScoreLinear


def overflows_in_fp16(model: nn.Module) -> bool:
    """Whether a model has layers that must be computed in float32, so that its weights cannot all be cast to fp16."""
    return any(type(layer) is Float32Linear for layer in model.modules())
