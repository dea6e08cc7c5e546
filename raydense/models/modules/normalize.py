"""Normalize: vectors scaled to length 1, so that their inner product is the cosine."""

from __future__ import annotations

from pathlib import Path

from torch.nn.functional import normalize

from raydense.errors import InputError
from raydense.models.encoder_folder import optional_json, write_json
from raydense.models.modules.module import VECTORS, Features, Module, Options


class Normalize(Module):
    """v / |v| of each vector [n, d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @classmethod
    def load(cls, folder: Path, width: int, options: Options) -> Normalize:
        if optional_json(folder / "config.json").get("module_input_name", VECTORS) != VECTORS:
            raise InputError("normalizes states, not vectors", folder / "config.json", "use a model of one vector a text")
        return cls(width)

    def save(self, folder: Path) -> None:
        write_json(folder / "config.json", {})

    def forward(self, features: Features) -> Features:
        return {**features, VECTORS: normalize(features[VECTORS], dim=-1)}
