"""A linear layer that autocast leaves in float32 when it computes in fp16, for values beyond fp16's range, as those of T5's feed-forward layers.

Which layers need it, transformers says of its models: `_keep_in_fp32_modules`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel


class Float32Linear(nn.Linear):
    """As nn.Linear; under autocast to fp16 it computes in float32, and gives float32. bf16 has float32's range, and stays as it is."""

    def forward(self, input: Tensor) -> Tensor:
        kind = input.device.type
        if not (torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16):
            return super().forward(input)
        with torch.autocast(kind, enabled=False):
            return linear(input.float(), self.weight, self.bias)


def keep_in_float32(model: PreTrainedModel) -> None:
    """Replace the linear layers that transformers keeps in float32 by those that autocast leaves there; their weights stay."""
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, layer in list(model.named_modules()):
        above, _, own = name.rpartition(".")
        if own in kept and isinstance(layer, nn.Linear):
            with torch.device("meta"):
                other = Float32Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            other.weight, other.bias = layer.weight, layer.bias
            setattr(model.get_submodule(above), own, other.train(layer.training))


def overflows_in_fp16(model: nn.Module) -> bool:
    """Whether a model has layers that must be computed in float32, so that its weights cannot all be cast to fp16."""
    return any(isinstance(layer, Float32Linear) for layer in model.modules())
