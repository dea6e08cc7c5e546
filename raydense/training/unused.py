"""Finds out whether a method's forward pass uses all weights: Longformer's for global attention, XLNet's mask and experts that no token meets get no gradient."""

from __future__ import annotations

import torch
from torch import nn

from raydense.training.loop_settings import LoopSettings
from raydense.training.memory import forward_and_back, longest_batch
from raydense.training.pieces import texts_of

_TOKENS = 16


def uses_all_weights(model: nn.Module, settings: LoopSettings, device: torch.device) -> bool:
    """Whether a forward and a backward pass of a few tokens of each kind of text give every trained weight a gradient.

    `model` is then on `device`; random numbers and gradients are as before.
    """
    model.to(device)
    training = model.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        forward_and_back(model.train(), longest_batch(model, settings, max(texts_of(settings).values()), device, _TOKENS))
    model.train(training)
    used = all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    model.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # what a trial took is not what the training takes
    return used
