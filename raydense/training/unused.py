"""Finds out whether a method's forward pass uses all weights: Longformer's for global attention, XLNet's mask and experts that no token meets get no gradient."""

from __future__ import annotations

import copy

import torch
from torch import nn

from raydense.training.loop_settings import LoopSettings
from raydense.training.piece_count import texts_of
from raydense.training.trial_batch import longest_batch, run_trial

_TOKENS = 16


def uses_all_weights(model: nn.Module, settings: LoopSettings) -> bool:
    """Whether a forward and a backward pass of a few tokens of each kind of text give every trained weight a gradient.

    Random numbers and gradients are as before. A copy of the modules runs, with the same weights: BigBird changes its attention for good
    where a text is short.
    """
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    trial, device = copy.deepcopy(model, shared).train(), next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        run_trial(trial, longest_batch(trial, settings, max(texts_of(settings).values()), device, _TOKENS))
    used = all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    model.zero_grad(set_to_none=True)
    return used
