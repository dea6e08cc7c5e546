"""The kinds of adapters, one file each: a small number of new weights next to a model's own, which are frozen.

A file `kind.py` here with a function `adapt(model, options)` is a kind; no list exists. It is requested as
`kind` or `kind:option=value,option=value`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel

from raydense.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Adapted:
    """A model with an adapter: `model` computes with it; `merged` returns a plain model whose weights include the adapter's."""

    model: Any
    merged: Callable[[], PreTrainedModel]


def adapt(model: PreTrainedModel, asked: str) -> Adapted:
    """`model` with a new adapter of the requested kind; its weights are drawn from torch's random state.

    InputError on an unknown kind or option.
    """
    kind, _, rest = asked.partition(":")
    known = [file.name for file in pkgutil.iter_modules(__path__)]
    if kind not in known:
        raise InputError(f"no adapter {kind!r}", "adapter", did_you_mean(kind, known) if known else "leave it out")
    pairs = (part.partition("=") for part in rest.split(",") if part)
    options = {name.strip(): value.strip() for name, _, value in pairs}
    adapted: Adapted = import_module(f"{__name__}.{kind}").adapt(model, options)
    return adapted
