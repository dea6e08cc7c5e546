"""The `tiny` preset: a small BERT encoder, or T5, from scratch, with a WordPiece vocabulary made from the corpus; needs no download."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, BertTokenizer, T5Config, T5ForConditionalGeneration

from raydense.models.encoder import Encoder, save_alone
from raydense.models.encoder_config import EncoderConfig
from raydense.models.modules.pooling import Pooling
from raydense.models.modules.transformer import Transformer
from raydense.models.tokenizer_folder import save_tokenizer
from raydense.models.weights import save_weights

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_VOCABULARY = 8_192
_CHARACTERS = 1_000
_MOST_TEXTS = 200_000
_POSITIONS = 512
_CHUNK = 4_096
_ATTENTION_STD = 0.1
_LETTERS = string.ascii_lowercase


def make_tiny_encoder(texts: Iterable[str], folder: str | Path, seed: int) -> None:
    """Write a BERT encoder from scratch (2 layers, 128 wide, vocabulary up to 8,192) as a sentence-transformers folder.

    At most 200,000 of the texts are read. The same texts and seed give the same bytes. Mean pooling, no normalisation, no dropout.
    """
    vocabulary = make_vocabulary(list(islice(texts, _MOST_TEXTS)))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=_POSITIONS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = BertModel(config, add_pooling_layer=False)
        _look_for_alike(encoder)
    parts = [Transformer(encoder), Pooling("mean", config.hidden_size)]
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=True)
    save_alone(Encoder(parts, EncoderConfig()), tokenizer, Path(folder))
    save_tokenizer(tokenizer, Path(folder), _POSITIONS)


def make_tiny_generator(texts: Iterable[str], folder: str | Path, seed: int) -> None:
    """Write a T5 from scratch (2 + 2 layers, 128 wide, the vocabulary of `make_tiny_encoder`) as a folder of transformers.

    Queries end with [SEP]. The same texts and seed give the same bytes. No dropout.
    """
    vocabulary = make_vocabulary(list(islice(texts, _MOST_TEXTS)))
    config = T5Config(
        vocab_size=len(vocabulary),
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=vocabulary["[PAD]"],
        eos_token_id=vocabulary["[SEP]"],
    )
    config.decoder_start_token_id = config.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
    save_weights(model, Path(folder))
    save_tokenizer(BertTokenizer(vocab=vocabulary, do_lower_case=True), Path(folder), _POSITIONS)


def _look_for_alike(encoder: BertModel) -> None:
    """Start the attention of each token on tokens like itself: keys equal queries, and both are drawn wide.

    A re-ranker must find the words of the query again in the passage. From BERT's own narrow, unequal weights that takes
    thousands of steps to begin; from these, tens.
    """
    layers: Any = encoder.encoder.layer
    for layer in layers:
        attention = layer.attention.self
        torch.nn.init.normal_(attention.query.weight, std=_ATTENTION_STD)
        attention.key.load_state_dict(attention.query.state_dict())


def make_vocabulary(texts: list[str]) -> dict[str, int]:
    """A lower-case WordPiece vocabulary with the ids of its pieces, the same in every process for the same texts."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    characters = _characters(texts, normalizer)
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizer
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer walks a hash table of random order: single characters, inner ones too, get their ids from here instead,
    # or the ids, and with them the ties between merges, would differ from run to run.
    pieces = [*characters, *(f"##{c}" for c in characters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[*_SPECIAL, *pieces],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core.get_vocab(with_added_tokens=False)


def _characters(texts: list[str], normalizer: normalizers.Normalizer) -> list[str]:
    """The most frequent characters of the normalised texts, ties by code point, without white space."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for chunk in _chunks(texts):
        codes = np.frombuffer(normalizer.normalize_str("\n".join(chunk)).encode("utf-32-le", "ignore"), dtype=np.uint32)
        counts += np.bincount(codes, minlength=len(counts))
    present = np.flatnonzero(counts)
    frequent = present[np.argsort(-counts[present], kind="stable")]
    return [chr(code) for code in frequent.tolist() if not chr(code).isspace()][:_CHARACTERS]


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    return (texts[i : i + _CHUNK] for i in range(0, len(texts), _CHUNK))


def many_words() -> Iterator[str]:
    """Texts that fill the vocabulary of `tiny` to its limit; a corpus gives at most as many pieces. Short, which is learned at once."""
    return (a + b + c for a in _LETTERS for b in _LETTERS for c in _LETTERS[:14])
