"""Loads the model that a worker starts from: whole, or with ZeRO 3 the worker's share of every weight."""

from __future__ import annotations

from typing import Any

import torch

from raydense.models.sharded import sharing_out, together
from raydense.training.engine import import_deepspeed, offloads, shards_weights
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of


def load_start(settings: LoopSettings, folder: str, device: torch.device) -> Any:
    """The model as `load_model`, on all workers at the same time; with ZeRO 3 none ever holds all of its weights.

    InputError, on all workers, if one of them cannot use the folder.
    """
    if not shards_weights(settings):
        with together():
            return load_model(settings, folder)
    import_deepspeed(device)
    with together():
        method_of(settings).check(settings, folder)
    with sharing_out(offloads(settings, device.type == "cuda")):
        return load_model(settings, folder)
