"""Casts the weights of a model to half precision for inference."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from raydense.models.float32_linear import overflows_in_fp16


def cast_whole(model: nn.Module, half: torch.dtype) -> bool:
    """Cast all weights of the transformers in `model`, so that norms and residual sums are in `half` too; False, and nothing done, where they must not be.

    That is a model with layers whose values leave fp16's range, as T5's. Its residual sums are as large: bf16 has the range, but few digits.
    Layers that compute in float32 whatever they are given keep their weights, and so does what follows a transformer.
    """
    if overflows_in_fp16(model):
        return False
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            for layer in part.modules():
                _cast(layer, half)
    return True


def cast_linear(model: nn.Module, half: torch.dtype) -> None:
    """Cast the weights of linear layers, as autocast would in each batch: what is computed under autocast has the same bits."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            _cast(layer, half)


def _cast(layer: Any, half: torch.dtype) -> None:
    if half not in getattr(layer, "in_float32", ()):
        for weight in layer.parameters(recurse=False):
            weight.data = weight.data.to(half)
