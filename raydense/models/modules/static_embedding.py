"""Static embeddings: one vector per token, and their mean for a text; no transformer. The cheapest encoder that can be trained.

The same as in model2vec and sentence-transformers' StaticEmbedding. `distilled` makes one from a transformer's outputs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import embedding_bag
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from raydense.errors import InputError, short
from raydense.models.modules.module import VECTORS, Features, InputModule, Options
from raydense.models.positions import Limit
from raydense.models.weights import reads_weights

_WEIGHTS, _TOKENIZER = "model.safetensors", "tokenizer.json"
_LIMIT = 1_000_000
_LONG = 8_192  # tokens of a text if the folder has no length
_BATCH = 256  # tokens of the vocabulary that the transformer reads at once
_FREQUENCY = 1e-4  # a of SIF


class StaticEmbedding(InputModule):
    """v(t) = mean of E[t_1] .. E[t_n], zeros for a text without tokens; `table` is E, [vocabulary, width]."""

    gives = "vectors"
    special_tokens = False
    multiplies = False

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.width = table.shape[1]

    @classmethod
    def load(cls, folder: Path, width: int, options: Options) -> StaticEmbedding:
        if options.adapter:
            raise InputError("a static embedding has no layer for an adapter", folder, "leave adapter out")
        if options.dropout:
            raise InputError("a static embedding has no dropout", folder, "leave dropout out")
        file = folder / _WEIGHTS
        try:
            if not reads_weights():
                return cls(torch.empty(_shape(file)))
            return cls(_table(load_file(file)))
        except (SafetensorError, KeyError) as error:
            raise InputError(f"its weights cannot be loaded ({short(error)})", file, "fetch or make it again") from error

    def save(self, folder: Path) -> None:
        save_file({"embedding.weight": self.table.detach().contiguous()}, folder / _WEIGHTS)

    def forward(self, features: Features) -> Features:
        ids, mask = features["input_ids"], features["attention_mask"]
        if not ids.shape[1]:
            return {**features, VECTORS: self.table.new_zeros(len(ids), self.width)}
        weights = (mask / mask.sum(dim=1, keepdim=True).clamp(min=1)).to(self.table.dtype)
        real = ids * mask  # whichever token pads, the mean leaves it out, and the table need not have it
        return {**features, VECTORS: embedding_bag(real, self.table, per_sample_weights=weights, mode="sum")}

    @classmethod
    def check(cls, folder: Path) -> None:
        for name, what in ((_WEIGHTS, "weights"), (_TOKENIZER, "tokenizer")):
            if not (folder / name).is_file():
                raise InputError(f"no {what} ({name})", folder, "give a whole model folder, saved with safetensors")

    @classmethod
    def limit(cls, folder: Path) -> Limit:
        return Limit(_LIMIT)

    @classmethod
    def lengths(cls, folder: Path) -> tuple[int | None, int | None]:
        truncation = _tokenizer(folder).truncation
        both = int(truncation["max_length"]) if truncation else _LONG
        return both, both

    @classmethod
    def tokenizer(cls, folder: Path) -> PreTrainedTokenizerBase:
        core = _tokenizer(folder)
        core.no_truncation()
        core.no_padding()
        # without a pad_token, which would be split out of the words that have it inside
        return PreTrainedTokenizerFast(tokenizer_object=core)

    def save_tokenizer(self, source: PreTrainedTokenizerBase, folder: Path, query_length: int, passage_length: int) -> None:
        core = Tokenizer.from_str(source.backend_tokenizer.to_str())
        core.enable_truncation(passage_length)
        core.save(str(folder / _TOKENIZER))

    def notes(self, query_length: int, passage_length: int) -> list[str]:
        if query_length == passage_length:
            return []
        return [f"sentence-transformers cuts queries, too, at {passage_length} tokens: a static embedding has one length there."]


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(folder / _TOKENIZER))
    except Exception as error:
        raise InputError(f"its tokenizer cannot be read ({short(error)})", folder, "fetch or make it again") from error


def _shape(file: Path) -> list[int]:
    with safe_open(file, "pt") as weights:
        names = set(weights.keys())
        name = "embedding.weight" if "embedding.weight" in names else "embeddings"
        rows, width = weights.get_slice(name).get_shape()
        return [weights.get_slice("mapping").get_shape()[0] if "mapping" in names else rows, width]


def _table(weights: dict[str, Tensor]) -> Tensor:
    """One row per token, in float32; in model2vec's folders tokens may share rows, and have weights."""
    if "embedding.weight" in weights:
        return weights["embedding.weight"].float()
    table = weights["embeddings"].float()
    if "mapping" in weights:
        table = table[weights["mapping"].long()]
    return table * weights["weights"].float().unsqueeze(1) if "weights" in weights else table


def distilled(states: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """A table of `dimension` columns from a transformer's output for each token alone, float32 [vocabulary, d], by its id.

    The first `dimension` principal components of the outputs (model2vec); then token i, which a vocabulary lists by falling
    frequency, weighs a / (a + p_i) with p_i = 1 / ((i + 1) ln n), Zipf's law in place of counts (SIF, Arora et al. 2017, eq. 1).
    """
    centred = states - states.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    leading = directions[:, ::-1][:, :dimension]
    leading = leading * np.sign(leading[np.abs(leading).argmax(axis=0), np.arange(leading.shape[1])])
    rank = np.arange(1, len(states) + 1)
    weight = _FREQUENCY / (_FREQUENCY + 1 / (rank * np.log(max(2, len(states)))))
    return (centred @ leading * weight[:, None]).astype(np.float32)
