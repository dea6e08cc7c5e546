"""LoRA (Hu et al. 2021, eq. 3): W + (alpha / rank) B A for linear layers; only B and A are trained. Uses `peft`.

raydense train --model QWEN_DIR --pooling lasttoken --adapter lora:rank=16,alpha=32 ...
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from torch import nn
from transformers import PreTrainedModel

from raydense.errors import InputError, did_you_mean
from raydense.models.adapters import Adapted
from raydense.models.weights import reads_weights

_DEFAULTS = {"rank": "16", "alpha": "32", "dropout": "0", "layers": "all-linear"}


def adapt(model: PreTrainedModel, options: dict[str, str]) -> Adapted:
    """A model with LoRA. Options: `rank`, `alpha`, `dropout`, and `layers`, names joined by + (default: all linear layers)."""
    unknown = next((name for name in options if name not in _DEFAULTS), None)
    if unknown is not None:
        raise InputError(f"lora has no {unknown!r}", "adapter", did_you_mean(unknown, list(_DEFAULTS)))
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise InputError("peft is not installed", "adapter", "pip install -c constraints.txt '.[lora]'") from error
    given = {**_DEFAULTS, **options}
    layers = given["layers"]
    try:
        config = LoraConfig(
            r=int(given["rank"]),
            lora_alpha=float(given["alpha"]),
            lora_dropout=float(given["dropout"]),
            target_modules=layers if layers == "all-linear" else layers.split("+"),
            bias="none",
        )
        # peft moves layers to the device where they are already: tensors without memory cannot be moved at all
        with nullcontext() if reads_weights() else patch.object(nn.Module, "to", lambda module, *_, **__: module):
            adapted: Any = get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"lora cannot be made ({str(error).splitlines()[0][:200]})", "adapter", "as lora:rank=16,alpha=32") from error
    return Adapted(adapted, lambda: copy.deepcopy(adapted).merge_and_unload())
