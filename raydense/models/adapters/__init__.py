"""The kinds of adapters, one file each: few new weights next to a model's own, which are frozen.

A file here named `kind.py` with a function `adapt(model, options)` is a kind: nothing else lists it. Asked for as
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
    """A model with an adapter: `model` is what goes forward; `merged` gives a plain model with the adapter's weights added in."""

    model: Any
    merged: Callable[[], PreTrainedModel]


def adapt(model: PreTrainedModel, asked: str) -> Adapted:
    """`model` with the new adapter that is asked for; new weights are drawn from torch's random state.

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
