"""A transformer, encoder or decoder: tokens to a state each. Its folder is one of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from raydense.errors import InputError
from raydense.models.adapters import adapt
from raydense.models.encoder_folder import positions, said_in, weights_folder, write_json
from raydense.models.modules.module import STATES, Features, InputModule, Options
from raydense.models.tokenizer_folder import read_tokenizer, save_tokenizer
from raydense.models.weights import has_pooler, load_encoder, save_weights

_CONFIG = "sentence_bert_config.json"


class Transformer(InputModule):
    """h_1 .. h_n, the last layer's states [n, length, d] of a model of transformers, without its pooler."""

    gives = "states"

    def __init__(self, model: PreTrainedModel, adapter: str | None = None) -> None:
        super().__init__()
        adapted = adapt(model, adapter) if adapter else None
        self.model = adapted.model if adapted else model
        self._merged = adapted.merged if adapted else None
        self.width = int(model.config.hidden_size)

    @classmethod
    def load(cls, folder: Path, width: int, options: Options) -> Transformer:
        return cls(load_encoder(folder, options.dropout), options.adapter)

    def save(self, folder: Path) -> None:
        """As `Module.save`; an adapter is merged into the weights, so that the folder is whole, and loads everywhere."""
        save_weights(self._merged() if self._merged else self.model, folder)

    def forward(self, features: Features) -> Features:
        return {**features, STATES: self.model(**features).last_hidden_state}

    @classmethod
    def check(cls, folder: Path) -> None:
        weights_folder(folder)

    @classmethod
    def limit(cls, folder: Path) -> int:
        return positions(folder)

    @classmethod
    def length(cls, folder: Path) -> int | None:
        found = said_in(folder / _CONFIG)
        if found.get("do_lower_case") and not said_in(folder / "tokenizer_config.json").get("do_lower_case"):
            raise InputError("lower-cases outside its tokenizer", folder / _CONFIG, "let the tokenizer do it: do_lower_case")
        return found.get("max_seq_length")

    @classmethod
    def tokenizer(cls, folder: Path) -> PreTrainedTokenizerBase:
        return read_tokenizer(folder)

    def save_tokenizer(self, source: PreTrainedTokenizerBase, folder: Path, length: int) -> None:
        save_tokenizer(source, folder, length)
        # else sentence-transformers makes a pooler, which no vector needs, and warns that its weights are missing
        without = {"model_args": {"add_pooling_layer": False}} if has_pooler(self.model.config) else {}
        write_json(folder / _CONFIG, {"max_seq_length": length, "do_lower_case": False, **without})

    @property
    def pretrained(self) -> Any:
        return self.model
