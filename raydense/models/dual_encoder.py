"""The retriever: one or two encoders that turn queries and passages into vectors.

Its folder is also a sentence-transformers model, which gives the same numbers; see `encoder_config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from raydense.models.encoder import Encoder, save_alone, write_router
from raydense.models.encoder_config import write_own_config
from raydense.models.encoder_folder import PASSAGE_ENCODER, QUERY_ENCODER, encoder_folders
from raydense.models.model_card import two_encoders_card
from raydense.models.modules.module import Options
from raydense.models.tokenizer import TextTokenizer, load_tokenizer
from raydense.models.tokens import Batch, Tokens
from raydense.storage import model_place


class DualEncoder(nn.Module):
    """A query q and a passage p to vectors E_Q(q) and E_P(p); their inner product is the score (DPR, eq. 1).

    `config` has pooling, prefixes and lengths, `tokenizer` makes tokens, `dimension` is that of the vectors.
    """

    def __init__(self, passage_encoder: Encoder, query_encoder: Encoder | None, tokenizer: TextTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.config = tokenizer.config
        self.dimension = passage_encoder.dimension
        self.passage_encoder = passage_encoder
        self.query_encoder = query_encoder

    @classmethod
    def load(cls, folder: str | Path, *, dropout: float | None = None, adapter: str | None = None, **overrides: Any) -> DualEncoder:
        """The retriever in a folder (raydense, sentence-transformers or Hugging Face), in float32 on the CPU, in eval mode.

        `overrides` are fields of `EncoderConfig`; None means the folder's value. With `shared=False`, a folder of one encoder
        gives both encoders their weights. `adapter`, as `adapters.adapt` takes it, adds one to each transformer and freezes the
        transformer's weights. InputError if the folder cannot be used. Only a model named on the Hub is downloaded; no code or
        pickle of a folder is run.
        """
        root = model_place(folder).local()
        tokenizer = load_tokenizer(root, **overrides)
        query, passage = encoder_folders(root)
        options = Options(dropout, adapter)
        encoder = Encoder.load(passage, tokenizer.config, options)
        query_encoder = None if tokenizer.config.shared else Encoder.load(query, tokenizer.config, options)
        return cls(encoder, query_encoder, tokenizer).eval()

    @property
    def encoder(self) -> Any:
        """The transformers model of the passage encoder; AttributeError if it has none."""
        return self.passage_encoder.input.pretrained

    def save(self, folder: str | Path) -> None:
        """Write the folder; separate encoders go to `query_encoder/` and `passage_encoder/`, each a complete model."""
        root, tokenizer = Path(folder), self.tokenizer
        if self.query_encoder is None:
            save_alone(self.passage_encoder, tokenizer.passage_source, root)
            return
        for name, encoder, source in (
            (PASSAGE_ENCODER, self.passage_encoder, tokenizer.passage_source),
            (QUERY_ENCODER, self.query_encoder, tokenizer.query_source),
        ):
            encoder.save(root / name, source)
            write_own_config(root / name, replace(self.config, shared=True))
        write_own_config(root, self.config)
        write_router(root, (QUERY_ENCODER, self.query_encoder), (PASSAGE_ENCODER, self.passage_encoder))
        two_encoders_card(root)

    def tokenize_queries(self, texts: Sequence[str]) -> Tokens:
        """As `TextTokenizer.queries`."""
        return self.tokenizer.queries(texts)

    def tokenize_passages(self, texts: Sequence[str]) -> Tokens:
        """As `TextTokenizer.passages`."""
        return self.tokenizer.passages(texts)

    def encode_queries(self, batch: Batch) -> Tensor:
        """Vectors float32 [n, dimension] of a padded batch of queries, in whatever grad and autocast mode the caller is in."""
        vectors: Tensor = (self.query_encoder or self.passage_encoder)(batch)
        return vectors

    def encode_passages(self, batch: Batch) -> Tensor:
        """Vectors float32 [n, dimension] of a padded batch of passages, in whatever grad and autocast mode the caller is in."""
        vectors: Tensor = self.passage_encoder(batch)
        return vectors

    def forward(self, queries: Batch | None = None, passages: Batch | None = None) -> tuple[Tensor | None, Tensor | None]:
        """The vectors of queries and passages in one call, since DDP and DeepSpeed expect one forward per step; None for what is not given."""
        return (
            None if queries is None else self.encode_queries(queries),
            None if passages is None else self.encode_passages(passages),
        )
