"""The retriever: one or two Hugging Face encoders that turn queries and passages into vectors.

Its folder is also a sentence-transformers model, which gives the same numbers; see `encoder_folder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from raydense.models.encoder_folder import (
    PASSAGE_ENCODER,
    QUERY_ENCODER,
    EncoderConfig,
    encoder_folders,
    weights_folder,
    write_own_config,
    write_sentence_transformers_config,
)
from raydense.models.tokenizer import TextTokenizer, load_tokenizer, save_tokenizer
from raydense.models.tokens import Tokens
from raydense.models.weights import load_encoder, save_weights
from raydense.storage import local

__all__ = ["DualEncoder", "EncoderConfig"]

Batch = dict[str, Tensor]


class DualEncoder(nn.Module):
    """A query q and a passage p to vectors E_Q(q) and E_P(p); their inner product is the score (DPR, eq. 1).

    `config` says how, `tokenizer` makes tokens, `dimension` is that of the vectors.
    """

    def __init__(self, encoder: PreTrainedModel, query_encoder: PreTrainedModel | None, tokenizer: TextTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.config = tokenizer.config
        self.dimension = int(encoder.config.hidden_size)
        self.encoder = encoder
        self.query_encoder = query_encoder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        shared: bool | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        query_length: int | None = None,
        passage_length: int | None = None,
        dropout: float | None = None,
    ) -> DualEncoder:
        """The retriever in a folder (ours, sentence-transformers', Hugging Face's), in float32 on the CPU, in eval mode.

        An argument of None means what the folder says. With `shared=False`, both encoders of a folder of one start from it.
        InputError where the folder cannot be used; nothing is ever downloaded, and no code or pickle of the folder is run.
        """
        root = local(folder)
        tokenizer = load_tokenizer(
            root,
            shared=shared,
            pooling=pooling,
            normalize=normalize,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            query_length=query_length,
            passage_length=passage_length,
        )
        query, passage = encoder_folders(root)
        encoder = load_encoder(weights_folder(passage), dropout)
        query_encoder = None if tokenizer.config.shared else load_encoder(weights_folder(query), dropout)
        return cls(encoder, query_encoder, tokenizer).eval()

    def save(self, folder: str | Path) -> None:
        """Write the folder; separate encoders go to `query_encoder/` and `passage_encoder/`, each a model of its own."""
        root = Path(folder)
        if self.query_encoder is None:
            self._save_one(root, self.encoder, self.tokenizer.passage_source)
        else:
            self._save_one(root / PASSAGE_ENCODER, self.encoder, self.tokenizer.passage_source)
            self._save_one(root / QUERY_ENCODER, self.query_encoder, self.tokenizer.query_source)
            write_own_config(root, self.config)

    def _save_one(self, folder: Path, encoder: PreTrainedModel, source: PreTrainedTokenizerBase) -> None:
        save_weights(encoder, folder)
        save_tokenizer(source, folder, max(self.config.query_length, self.config.passage_length))
        write_sentence_transformers_config(folder, self.config, self.dimension)
        write_own_config(folder, replace(self.config, shared=True))

    def tokenize_queries(self, texts: Sequence[str]) -> Tokens:
        """As `TextTokenizer.queries`."""
        return self.tokenizer.queries(texts)

    def tokenize_passages(self, texts: Sequence[str]) -> Tokens:
        """As `TextTokenizer.passages`."""
        return self.tokenizer.passages(texts)

    def encode_queries(self, batch: Batch) -> Tensor:
        """Vectors float32 [n, dimension] of a padded batch of queries, in whatever grad and autocast mode the caller is in."""
        return self._vectors(self.encoder if self.query_encoder is None else self.query_encoder, batch)

    def encode_passages(self, batch: Batch) -> Tensor:
        """Vectors float32 [n, dimension] of a padded batch of passages, in whatever grad and autocast mode the caller is in."""
        return self._vectors(self.encoder, batch)

    def forward(self, queries: Batch | None = None, passages: Batch | None = None) -> tuple[Tensor | None, Tensor | None]:
        """The vectors of both sides in one call, so that DDP and DeepSpeed see one forward a step; None for a side not given."""
        return (
            None if queries is None else self.encode_queries(queries),
            None if passages is None else self.encode_passages(passages),
        )

    def _vectors(self, encoder: PreTrainedModel, batch: Batch) -> Tensor:
        states = encoder(**batch).last_hidden_state
        vectors = states[:, 0].float() if self.config.pooling == "cls" else mean_of_tokens(states, batch["attention_mask"])
        return nn.functional.normalize(vectors, dim=-1) if self.config.normalize else vectors


def mean_of_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens, summed in float32: states [n, length, d] and mask [n, length] to [n, d]."""
    real = mask.unsqueeze(-1)
    total = (states * real.to(states.dtype)).sum(dim=1, dtype=torch.float32)
    return total / real.sum(dim=1).clamp(min=1)
