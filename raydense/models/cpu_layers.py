"""Gives a model the layers that train faster on a CPU: dropout and attention. What it computes stays the same but for rounding and the draw of dropout."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from raydense.models.cpu_attention import CPU_ATTENTION
from raydense.models.cpu_dropout import CpuDropout


def use_cpu_layers(model: nn.Module) -> None:
    """Replace dropout, and the attention of models of transformers that use PyTorch's kernel; weights stay as they are."""
    for module in list(model.modules()):
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation == "sdpa":
            module.config._attn_implementation = CPU_ATTENTION
        for name, layer in module.named_children():
            if type(layer) is nn.Dropout:
                setattr(module, name, CpuDropout(layer.p, layer.inplace).train(layer.training))
