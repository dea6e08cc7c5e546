"""Activation checkpointing: a step stores the inputs of the layers alone, and computes the rest again in the backward pass."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from raydense.errors import InputError

_M_MMAP_THRESHOLD = -3  # of malloc.h


def checkpoint_activations(model: nn.Module, recomputing: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
    """Let every encoder in `model` store only the inputs of its layers, and compute the rest again in the backward pass.

    That happens within `recomputing()`, for callers whose forward is within a mode of torch. InputError if an encoder's family does not support it,
    or the model has no layers at all.
    """
    encoders = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    if lacks := next(
        (type(part).__name__ for part in encoders if not part.supports_gradient_checkpointing), None if encoders else "the model"
    ):
        raise InputError(f"{lacks} has none", "activation_checkpointing", "leave it out; micro_batch saves memory too")
    for part in encoders:
        part.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": lambda: (nullcontext(), recomputing())})


def give_memory_back() -> None:
    """Let glibc return each freed tensor of a mebibyte or more to the system at once, for a third more time.

    Otherwise its heap keeps holes between the few stored activations, as large as all that were freed.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)
