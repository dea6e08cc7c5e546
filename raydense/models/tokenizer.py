"""Texts to tokens, without the weights of the model: what CPU workers load.

It uses the compiled core of the folder's Hugging Face tokenizer. Queries, passages and pairs each have a copy whose
truncation is set once, so that threads never race for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import PreTrainedTokenizerBase

from raydense.errors import InputError
from raydense.models.encoder_config import EncoderConfig, input_module, read_encoder_config
from raydense.models.encoder_folder import MODULES, encoder_folders, has_tokenizer
from raydense.models.tokenizer_folder import read_tokenizer
from raydense.models.tokens import Tokens
from raydense.storage import model_place

_CHUNK = 2_048
_SPECIAL = 4  # special tokens that a tokenizer adds to a text, at most: a text of fewer bytes than the length without them has fewer tokens


class TextTokenizer:
    """Queries and passages to tokens; picklable, and safe to call from several threads.

    `special_tokens`: whether those of the tokenizer are added, to queries and to passages.
    """

    def __init__(
        self,
        query: PreTrainedTokenizerBase,
        passage: PreTrainedTokenizerBase,
        config: EncoderConfig,
        special_tokens: tuple[bool, bool] = (True, True),
    ) -> None:
        self.config = config
        self._special = special_tokens
        self.query_source, self.passage_source = query, passage
        self.pad_id = int(passage.pad_token_id or query.pad_token_id or 0)  # a static encoder names none
        self._query = _cut_to(query, config.query_length)
        self._passage = _cut_to(passage, config.passage_length)
        # as XLNet's; the types of others' single texts are all 0
        self._typed = [_has_types(source) and any(source.backend_tokenizer.encode("").type_ids) for source in (query, passage)]

    def queries(self, texts: Sequence[str]) -> Tokens:
        """Tokens of prefix + text, special tokens included, at most `query_length` of them."""
        return _tokens(
            partial(self._query.encode_batch_fast, add_special_tokens=self._special[0]),
            [self.config.query_prefix + t for t in texts],
            self._typed[0],
        )

    def truncates(self, texts: Sequence[str]) -> list[bool]:
        """Whether a query has more than `query_length` tokens."""
        room = self.config.query_length - _SPECIAL - len(self.config.query_prefix.encode())
        found = [len(text.encode("utf-8", "replace")) > room for text in texts]  # a token has a byte at least
        long = [at for at, is_long in enumerate(found) if is_long]
        given = [self.config.query_prefix + texts[at] for at in long]
        for at, tokens in zip(long, self._longer_query.encode_batch_fast(given, add_special_tokens=self._special[0]), strict=True):
            found[at] = len(tokens) > self.config.query_length
        return found

    @cached_property
    def _longer_query(self) -> Tokenizer:
        """Cuts a query to one token more: tokenizers 0.23.1 and 0.23.2 do not say what they cut."""
        return _cut_to(self.query_source, self.config.query_length + 1)

    def passages(self, texts: Sequence[str]) -> Tokens:
        """Tokens of prefix + text, special tokens included, at most `passage_length` of them."""
        return _tokens(
            partial(self._passage.encode_batch_fast, add_special_tokens=self._special[1]),
            [self.config.passage_prefix + t for t in texts],
            self._typed[1],
        )


class PairTokenizer:
    """Pairs of a query and a passage to tokens, at most `length` of them; picklable, and safe to call from several threads."""

    def __init__(self, source: PreTrainedTokenizerBase, length: int) -> None:
        self.source, self.length = source, length
        self.pad_id = int(source.pad_token_id)
        self._typed = _has_types(source)
        self._pair = _cut_to(source, length)

    def pairs(self, queries: Sequence[str], passages: Sequence[str]) -> Tokens:
        """Tokens of each pair; in one that is too long, the longer text is cut until both are equally long, then both, as by Hugging Face."""
        return _tokens(self._pair.encode_batch_fast, list(zip(queries, passages, strict=True)), self._typed)


def load_tokenizer(folder: str | Path, **overrides: Any) -> TextTokenizer:
    """The tokenizer of a retriever's folder, with its prefixes and lengths; overrides as for `DualEncoder.load`.

    InputError if the folder is not a retriever that raydense can read, or a length has no room for a text.
    """
    root = model_place(folder).local()
    config = read_encoder_config(root, **overrides)
    kinds, inner = zip(*(input_module(folder) for folder in encoder_folders(root)), strict=True)
    query, passage = (kind.tokenizer(folder) for kind, folder in zip(kinds, inner, strict=True))
    if len({query.pad_token_id, passage.pad_token_id} - {None}) > 1:
        raise InputError("the two encoders pad with different tokens", root, "train both from one model")
    special = (kinds[0].special_tokens, kinds[1].special_tokens)
    for source, adds, name in zip((query, passage), special, ("query_length", "passage_length"), strict=True):
        if adds:
            require_room(source, name, getattr(config, name), root)
    if config.query_prefix:
        _refuse_long_prefix(query, config, special[0], root)
    return TextTokenizer(query, passage, config, special)


def require_room(source: PreTrainedTokenizerBase, name: str, length: int, folder: str | Path, pair: bool = False) -> None:
    """InputError if `length` has no token for a text, or for each text of a pair, next to the special ones: `tokenizers` would not cut."""
    special = source.backend_tokenizer.num_special_tokens_to_add(pair)
    least = (2 if pair else 1) + special
    if length < least:
        raise InputError(f"{name} {length} leaves no room next to {special} special tokens", folder, f"make it at least {least}")


def _refuse_long_prefix(source: PreTrainedTokenizerBase, config: EncoderConfig, special: bool, folder: Path) -> None:
    """InputError if nothing of a query would be read behind its prefix: all queries would have one vector."""
    found = len(_cut_to(source, config.query_length).encode(config.query_prefix, add_special_tokens=special))
    if found >= config.query_length:
        what = f"the text before each query takes all of the {config.query_length} tokens of a query"
        raise InputError(what, folder, "shorten it, or give a greater query_length, as `train` and `encode --queries` take it")


def tokenizer_of_passages(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer for passages of a model folder; a folder with only a tokenizer works too.

    InputError if there is none that raydense can read.
    """
    root = model_place(folder).local()
    if has_tokenizer(root) and not (root / MODULES).is_file():
        return read_tokenizer(root)
    kind, inner = input_module(encoder_folders(root)[1])
    return kind.tokenizer(inner)


def starts_of_long(source: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> Iterator[NDArray[np.int64] | None]:
    """For each text with more than `length` tokens, without special tokens, the characters where they begin, rising; otherwise None."""
    for start in range(0, len(texts), _CHUNK):
        for found in source.backend_tokenizer.encode_batch(list(texts[start : start + _CHUNK]), add_special_tokens=False):
            offsets = np.fromiter(chain.from_iterable(found.offsets), np.int64) if len(found) > length else None
            yield None if offsets is None else np.maximum.accumulate(offsets[::2])


def splits_words_first(source: PreTrainedTokenizerBase) -> bool:
    """Whether the tokens of a text are those of its words, which white space and punctuation separate, as BERT's are."""
    core = source.backend_tokenizer
    plain = core.normalizer is None or isinstance(core.normalizer, BertNormalizer)
    return plain and isinstance(core.pre_tokenizer, BertPreTokenizer) and isinstance(core.model, WordPiece)


def _has_types(source: PreTrainedTokenizerBase) -> bool:
    return "token_type_ids" in source.model_input_names


def _cut_to(source: PreTrainedTokenizerBase, length: int) -> Tokenizer:
    core = Tokenizer.from_str(source.backend_tokenizer.to_str())
    core.enable_truncation(length, direction=source.truncation_side)
    return core


def _tokens(encode: Callable[[list], list[Encoding]], texts: list, typed: bool = False) -> Tokens:
    """Encode in chunks, since an Encoding needs many times the memory of its tokens."""
    lengths, ids, types = [], [], []
    for start in range(0, len(texts), _CHUNK):
        found = encode(texts[start : start + _CHUNK])
        lengths += [len(e) for e in found]
        ids.append(np.fromiter(chain.from_iterable(e.ids for e in found), np.int32))
        if typed:
            types.append(np.fromiter(chain.from_iterable(e.type_ids for e in found), np.int8))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    none = np.empty(0, np.int32)
    return Tokens(np.concatenate([none, *ids]), offsets, np.concatenate([none.astype(np.int8), *types]) if typed else None)
