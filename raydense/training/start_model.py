"""Loads the model that a worker starts from: whole, or with ZeRO 3 the worker's share of every weight."""

from __future__ import annotations

from typing import Any

import torch

from raydense.errors import InputError
from raydense.models.sharded import raise_together, sharing_out
from raydense.training.engine import import_deepspeed, tied
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of


def load_start(settings: LoopSettings, folder: str, device: torch.device) -> Any:
    """The model as `load_model`; with ZeRO 3 all workers call this at the same time, and none ever holds all of its weights.

    InputError if the folder cannot be used; with ZeRO 3 then on all workers.
    """
    if not tied(settings):
        return load_model(settings, folder)
    import_deepspeed(device)
    fault = None
    try:
        method_of(settings).check(settings, folder)
    except InputError as error:
        fault = error
    raise_together(fault)
    with sharing_out():
        return load_model(settings, folder)
