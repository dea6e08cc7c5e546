"""The re-ranker: one Hugging Face model that reads a query and a passage together and gives one score.

Its folder is also a sentence-transformers CrossEncoder, which gives the same scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel

from raydense.errors import InputError
from raydense.models.encoder_config import read_encoder_config
from raydense.models.encoder_folder import (
    OWN_FILE,
    PROMPTS,
    encoder_folders,
    is_reranker,
    optional_json,
    prompts_of,
    refuse_types,
    weights_folder,
    write_json,
)
from raydense.models.model_card import reranker_card
from raydense.models.modules.transformer import Transformer
from raydense.models.tokenizer import PairTokenizer, require_room
from raydense.models.tokenizer_folder import read_tokenizer, save_tokenizer
from raydense.models.tokens import Tokens
from raydense.models.weights import load_scorer, save_weights
from raydense.storage import model_place

# Without it sentence-transformers puts a sigmoid over the score of a model with one label.
_IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


class CrossEncoder(nn.Module):
    """s_ce(q, p): transformers' head on the first token of `[CLS] q [SEP] p [SEP]`; of BERT and ERNIE the pooler and a linear layer, as in RocketQA."""

    def __init__(self, model: PreTrainedModel, tokenizer: PairTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.length = tokenizer.length
        self.model = model

    @classmethod
    def load(cls, folder: str | Path, length: int | None = None, dropout: float | None = None) -> CrossEncoder:
        """A cross-encoder's folder, or an encoder's or retriever's, which gets a new head drawn from torch's random state.

        `length`: most tokens of a pair; None means the folder's. In float32 on the CPU, in eval mode. InputError
        if the folder cannot be used. Only a model named on the Hub is downloaded; no code or pickle of a folder is run.
        """
        tokenizer = load_pair_tokenizer(folder, length)
        return cls(load_scorer(_inner(model_place(folder).local()), dropout), tokenizer).eval()

    def save(self, folder: str | Path) -> None:
        """Write the folder, with the pair length and a README."""
        root = Path(folder)
        self.model.config.sentence_transformers = dict(_IDENTITY)
        save_weights(self.model, root)
        save_tokenizer(self.tokenizer.source, root, self.length)
        write_json(root / OWN_FILE, {"pair_length": self.length})
        reranker_card(root, self.length)

    def tokenize_pairs(self, queries: Sequence[str], passages: Sequence[str]) -> Tokens:
        """As `PairTokenizer.pairs`."""
        return self.tokenizer.pairs(queries, passages)

    def forward(self, pairs: dict[str, Tensor]) -> Tensor:
        """Scores (logits) float32 [n] of a padded batch of n pairs."""
        return self.model(**pairs).logits.squeeze(-1).float()


def load_pair_tokenizer(folder: str | Path, length: int | None = None) -> PairTokenizer:
    """The tokenizer of a re-ranker's folder without its weights; `length` as for `CrossEncoder.load`."""
    root = model_place(folder).local()
    inner = _inner(root)
    _refuse_prompt(root, inner)
    limit = Transformer.limit(inner)
    length = length or _pair_length(root, inner, limit.tokens)
    limit.refuse_more("length", length, folder)
    source = read_tokenizer(inner)
    require_room(source, "length", length, folder, pair=True)
    return PairTokenizer(source, length)


def refuse_untrained(folder: str | Path) -> None:
    """InputError if the folder holds an encoder: its head would have random weights, and its scores no meaning."""
    if not is_reranker(_inner(model_place(folder).local())):
        raise InputError("is no trained re-ranker: it has no head", folder, "give one that objective reranker or joint has trained")


def _refuse_prompt(root: Path, inner: Path) -> None:
    """InputError for a cross-encoder of sentence-transformers that puts a prompt before its texts: without it the scores are others."""
    found = prompts_of(root)
    if is_reranker(inner) and found["prompts"].get(found.get("default_prompt_name")):
        what = f"puts the prompt {found['default_prompt_name']!r} before its texts"
        raise InputError(what, root, "write it into the texts, and set default_prompt_name to null in " + PROMPTS)


def _inner(root: Path) -> Path:
    return weights_folder(encoder_folders(root)[1])


def _pair_length(root: Path, inner: Path, limit: int) -> int:
    """The most tokens of a pair: as a folder of raydense records it; another cross-encoder's limit; an encoder's passage length."""
    own = optional_json(root / OWN_FILE)
    refuse_types(own, {"pair_length": int}, root / OWN_FILE)
    if "pair_length" in own:
        return int(own["pair_length"])
    if is_reranker(inner):
        return min(Transformer.lengths(inner)[1] or limit, limit)
    return read_encoder_config(root).passage_length
