"""Weights that the forward pass of a method does not use, as Longformer's for global attention or XLNet's mask: no gradient ever reaches them.

DistributedDataParallel waits for a gradient of each weight that it knows.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raydense.training.loop_settings import LoopSettings
from raydense.training.memory import forward_and_back, longest_batch
from raydense.training.method import method_of


def hide_unused(model: nn.Module, settings: LoopSettings, device: torch.device) -> None:
    """Keep the unused weights of `model` from DistributedDataParallel, after a forward and a backward pass of one query's texts.

    They stay what they are, as they do on one worker. Random numbers are as before.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        forward_and_back(model, longest_batch(model, settings, method_of(settings).queries_of(settings), device))
    unused = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    model.zero_grad(set_to_none=True)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, unused)
