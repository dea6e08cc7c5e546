"""Pooling: the states of a text's tokens to one vector, in the modes of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from raydense.errors import InputError
from raydense.models.encoder_folder import read_json, refuse_types, write_json
from raydense.models.modules.module import STATES, VECTORS, Features, Module, Options

_CONFIG = "config.json"
# The keys that sentence-transformers 2 to 6 read, by mode; a folder always has the first four.
_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_ORDER = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")  # of the old keys, where several are on


class Pooling(Module):
    """States [n, length, d] to one vector float32 [n, d] each; several modes, as "cls+mean", are concatenated: [n, modes * d].

    `cls` is the first token's state, `lasttoken` that of the last real token. Padding is on the right.
    """

    takes = "states"

    def __init__(self, mode: str, width: int) -> None:
        super().__init__()
        self.mode, self._modes = mode, [_POOLS[name] for name in mode.split("+")]
        self._states = width
        self.width = width * len(self._modes)

    @classmethod
    def load(cls, folder: Path, width: int, options: Options) -> Pooling:
        return cls(pooling_mode(folder), width)

    def save(self, folder: Path) -> None:
        modes = self.mode.split("+")
        keys = {key: mode in modes for mode, key in _KEYS.items() if mode in modes or list(_KEYS).index(mode) < 4}
        listed = {"pooling_mode": modes} if modes != [mode for mode in _ORDER if mode in modes] else {}
        write_json(folder / _CONFIG, {"word_embedding_dimension": self._states, **keys, **listed})

    def forward(self, features: Features) -> Features:
        states, mask = features[STATES], features["attention_mask"]
        vectors = [pool(states, mask) for pool in self._modes]
        return {**features, VECTORS: vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)}


def pooling_mode(folder: Path, prompted: bool = False) -> str:
    """The mode that a Pooling's folder names, or several joined by "+"; `prompted`: whether texts have prompts.

    InputError on an unknown mode, or on a folder that excludes the prompt from pooling.
    """
    values = read_json(folder / _CONFIG)
    found = values.get("pooling_mode") or [mode for mode in _ORDER if values.get(_KEYS[mode]) is True]
    named = [found] if isinstance(found, str) else found
    refuse_types({"pooling_mode": named}, {"pooling_mode": list}, folder / _CONFIG)
    mode = "+".join(map(str, named)) or "mean"
    check_mode(mode, folder / _CONFIG)
    if prompted and not values.get("include_prompt", True):
        raise InputError("leaves the prompt out of the pooling", folder / _CONFIG, "that cannot be read: use a model that pools over it")
    return mode


def check_mode(mode: str, where: object) -> None:
    """InputError unless each part of `mode` is a way to pool."""
    unknown = [name for name in mode.split("+") if name not in _POOLS]
    if unknown:
        raise InputError(f"no pooling {unknown[0]!r}", where, f"there are {', '.join(_POOLS)}, and several joined by +")


def mean_of_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens, summed in float32: states [n, length, d] and mask [n, length] to [n, d]."""
    return _sum_of_tokens(states, mask) / _counts(mask)


def _sum_of_tokens(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask.unsqueeze(-1).to(states.dtype)).sum(dim=1, dtype=torch.float32)


def _counts(mask: Tensor) -> Tensor:
    return mask.sum(dim=1, keepdim=True).clamp(min=1)


def _mean_sqrt(states: Tensor, mask: Tensor) -> Tensor:
    return _sum_of_tokens(states, mask) / _counts(mask).sqrt()


def _weighted(states: Tensor, mask: Tensor) -> Tensor:
    """The mean with weights 1, 2, ... by position (SGPT, eq. 2)."""
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (states.float() * weights.unsqueeze(-1)).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


def _max(states: Tensor, mask: Tensor) -> Tensor:
    return states.float().masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)


def _last(states: Tensor, mask: Tensor) -> Tensor:
    """Zeros for a text without tokens, as in sentence-transformers."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    found = states[torch.arange(len(states), device=mask.device), (mask * positions).argmax(dim=1)].float()
    return found.masked_fill(mask.amax(dim=1, keepdim=True) == 0, 0)


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return states[:, 0].float()


_POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first,
    "mean": mean_of_tokens,
    "max": _max,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted,
    "lasttoken": _last,
}
