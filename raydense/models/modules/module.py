"""The base classes of an encoder's modules: features in, features out, and a folder each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from raydense.models.positions import Limit

# `input_ids` and `attention_mask` int64 [n, length], as the tokenizer gives them; then what the modules add, by the names below:
# states [n, length, width] of the tokens, vectors float32 [n, width] of the texts.
Features = dict[str, Tensor]
STATES, VECTORS = "token_embeddings", "sentence_embedding"


@dataclass(frozen=True)
class Options:
    """What a caller changes when modules are loaded: `dropout` (None: the folder's) and an `adapter` (None: no adapter)."""

    dropout: float | None = None
    adapter: str | None = None


class Module(nn.Module, ABC):
    """One entry of modules.json. The class has the name that sentence-transformers gives the kind.

    `takes` and `gives` are one of tokens, states and vectors; `width` is the dimension of what comes out.
    """

    takes: ClassVar[str] = "vectors"
    gives: ClassVar[str] = "vectors"
    width: int

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, width: int, options: Options) -> Module:
        """The module in `folder`, which takes states or vectors of `width`; InputError where it cannot be read."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load` reads, in the files of sentence-transformers."""

    @abstractmethod
    def forward(self, features: Features) -> Features:
        """The features, with what this module makes of them."""


class InputModule(Module):
    """The first module: it takes tokens. Its class methods read no weights.

    `special_tokens`: whether the tokenizer adds those of its own; `multiplies`: whether nearly all of its time goes into matrix products.
    """

    takes: ClassVar[str] = "tokens"
    special_tokens: ClassVar[bool] = True
    multiplies: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def check(cls, folder: Path) -> None:
        """InputError unless weights and tokenizer are in `folder`."""

    @classmethod
    @abstractmethod
    def limit(cls, folder: Path) -> Limit:
        """The most tokens that the module can read."""

    @classmethod
    @abstractmethod
    def lengths(cls, folder: Path) -> tuple[int | None, int | None]:
        """The most tokens of a query and of a passage in the files of sentence-transformers in `folder`; None where they have none."""

    @classmethod
    @abstractmethod
    def tokenizer(cls, folder: Path) -> PreTrainedTokenizerBase:
        """The fast tokenizer in `folder`."""

    @abstractmethod
    def save_tokenizer(self, source: PreTrainedTokenizerBase, folder: Path, query_length: int, passage_length: int) -> None:
        """Write the tokenizer so that sentence-transformers cuts passages at `passage_length` tokens, and queries at theirs if it can."""

    @abstractmethod
    def notes(self, query_length: int, passage_length: int) -> list[str]:
        """Paragraphs of a folder's README about using this module in other libraries."""

    @property
    def pretrained(self) -> Any:
        """The transformers model inside; AttributeError if there is none."""
        raise AttributeError(f"{type(self).__name__} has no model of transformers inside")
