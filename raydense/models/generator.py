"""The query generator (doc2query): a Hugging Face sequence-to-sequence model that reads a passage and writes a query for it.

Its folder is a plain one of transformers; `raydense.json` in it holds the prefix and the lengths.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from raydense.errors import InputError
from raydense.models.encoder_config import EncoderConfig
from raydense.models.encoder_folder import (
    OWN_FILE,
    optional_json,
    read_json,
    refuse_types,
    weights_folder,
    write_json,
)
from raydense.models.model_card import generator_card
from raydense.models.positions import positions
from raydense.models.tokenizer import TextTokenizer
from raydense.models.tokenizer_folder import read_tokenizer, save_tokenizer
from raydense.models.tokens import Batch, Tokens
from raydense.models.weights import load_writer, save_weights
from raydense.settings import BaseSettings
from raydense.storage import model_place


@dataclass(frozen=True)
class GeneratorConfig:
    """The prefix of passages, and the most tokens kept of a passage and of a query, special tokens included."""

    passage_prefix: str = ""
    passage_length: int = 128
    query_length: int = 64


class Generator(nn.Module):
    """A model of P(q | p), trained by teacher forcing; `models.sampling` draws queries from it."""

    def __init__(self, model: PreTrainedModel, tokenizer: TextTokenizer, config: GeneratorConfig) -> None:
        super().__init__()
        self.model, self.tokenizer, self.config = model, tokenizer, config

    @classmethod
    def load(cls, folder: str | Path, dropout: float | None = None, **overrides: Any) -> Generator:
        """The generator in a folder; `overrides` are fields of `GeneratorConfig`, None means the folder's value.

        In float32 on the CPU, in eval mode. InputError if the folder cannot be used. Only a model named on the Hub is
        downloaded; no code or pickle of a folder is run.
        """
        inner, config = read_generator_config(folder, **overrides)
        model = load_writer(inner, dropout)
        _name_start_and_end(model, folder)
        return cls(model, generator_tokenizer(inner, config), config).eval()

    def save(self, folder: str | Path) -> None:
        """Write the folder, with prefix, lengths and a README."""
        root = Path(folder)
        save_weights(self.model, root)
        save_tokenizer(self.tokenizer.passage_source, root, max(self.config.passage_length, self.config.query_length))
        write_json(root / OWN_FILE, asdict(self.config))
        generator_card(root, self.config.passage_prefix, self.config.passage_length, self.config.query_length)

    def tokenize_queries(self, texts: list[str]) -> Tokens:
        """Tokens of queries as training targets: at most `query_length`, the end token included."""
        return self.tokenizer.queries(texts)

    def tokenize_passages(self, texts: list[str]) -> Tokens:
        """Tokens of prefix + passage, at most `passage_length`."""
        return self.tokenizer.passages(texts)

    def forward(self, queries: Batch, passages: Batch) -> tuple[Tensor, Tensor]:
        """-log P(q | p) of each pair, float32 [n], and the tokens of each query, float32 [n]; row i of both batches is a pair."""
        ids = queries["input_ids"]
        written = torch.cat([torch.full_like(ids[:, :1], self.start_id), ids[:, :-1]], dim=1)
        # not `labels`: the model would compute its own loss; and without the cache for the next token
        read = {"input_ids": passages["input_ids"], "attention_mask": passages["attention_mask"]}
        logits = self.model(**read, decoder_input_ids=written, use_cache=False).logits
        labels = ids.masked_fill(queries["attention_mask"] == 0, -100)
        each = cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=-100, reduction="none")
        return each.sum(dim=1), queries["attention_mask"].sum(dim=1).float()

    @property
    def start_id(self) -> int:
        """The token that begins a query."""
        return int(self.model.config.decoder_start_token_id)

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a query."""
        found: int | list[int] = self.model.config.eos_token_id
        return list(map(int, found)) if isinstance(found, list) else [int(found)]


def changes(settings: BaseSettings) -> dict[str, Any]:
    """The values of a generator's folder that the settings override; None leaves a value unchanged."""
    return {f.name: getattr(settings, f.name) for f in fields(GeneratorConfig)}


def _name_start_and_end(model: PreTrainedModel, folder: str | Path) -> None:
    """Write the tokens that begin and end a query into the config, where training and sampling read them; InputError if the folder has none."""
    for name, does, of_t5 in (("decoder_start_token_id", "begins", "the padding"), ("eos_token_id", "ends", "</s>")):
        found = getattr(model.config, name, None)
        found = getattr(model.generation_config, name, None) if found is None else found
        if found is None:
            raise InputError(f"has no token that {does} a query", folder, f"write {name} into its config.json (T5: that of {of_t5})")
        setattr(model.config, name, found)


def read_generator_config(folder: str | Path, **overrides: Any) -> tuple[Path, GeneratorConfig]:
    """The folder of a generator's Hugging Face files and its configuration, with the overrides that are not None.

    InputError if the folder holds no sequence-to-sequence model; reads no weights.
    """
    root = model_place(folder).local()
    inner = weights_folder(root)
    if not read_json(inner / "config.json").get("is_encoder_decoder"):
        raise InputError("is no sequence-to-sequence model", folder, "give one such as T5 or BART, or train one (--objective generator)")
    found = optional_json(root / OWN_FILE)
    known = {f.name for f in fields(GeneratorConfig)}
    if found and set(found) != known:
        raise InputError("is not what this raydense writes for a generator", root / OWN_FILE, "give a generator's folder")
    refuse_types(found, get_type_hints(GeneratorConfig), root / OWN_FILE)
    config = replace(GeneratorConfig(**found), **{name: value for name, value in overrides.items() if value is not None})
    limit = positions(inner)
    for name in ("passage_length", "query_length"):
        limit.refuse_more(name, getattr(config, name), folder)
    return inner, config


def longest_input(folder: str | Path) -> int:
    """The most tokens that a generator reads: `passage_length` of one that raydense trained, otherwise what its model and tokenizer allow."""
    inner, config = read_generator_config(folder)
    trained = (model_place(folder).local() / OWN_FILE).is_file()
    return config.passage_length if trained else positions(inner).tokens


def generator_tokenizer(inner: Path, config: GeneratorConfig) -> TextTokenizer:
    """The tokenizer for a generator's input (passages) and output (queries)."""
    source = read_tokenizer(inner)
    lengths = EncoderConfig(passage_prefix=config.passage_prefix, passage_length=config.passage_length, query_length=config.query_length)
    return TextTokenizer(source, source, lengths)


def decode(tokenizer: TextTokenizer, ids: Tensor) -> list[str]:
    """The texts of token ids int64 [n, length], without special tokens and without white space at the ends."""
    texts = tokenizer.query_source.backend_tokenizer.decode_batch(ids.tolist(), skip_special_tokens=True)
    return [text.strip() for text in texts]
