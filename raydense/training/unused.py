"""Finds out whether a method's forward pass uses all weights: Longformer's for global attention, XLNet's mask and experts that no token meets get no gradient."""

from __future__ import annotations

import copy

import torch
from torch import nn

from raydense.training.loop_settings import LoopSettings
from raydense.training.memory import forward_and_back, longest_batch
from raydense.training.pieces import texts_of

_TOKENS = 16


def uses_all_weights(model: nn.Module, settings: LoopSettings) -> bool:
    """Whether a forward and a backward pass of a few tokens of each kind of text, on the CPU, give every trained weight a gradient.

    Random numbers are as before. It is a copy of the model that runs: BigBird changes its attention for good where a text is short.
    """
    trial = copy.deepcopy(model).to("cpu").train()
    with torch.random.fork_rng(devices=[]):
        forward_and_back(trial, longest_batch(trial, settings, max(texts_of(settings).values()), "cpu", _TOKENS))
    return all(weight.grad is not None for weight in trial.parameters() if weight.requires_grad)
