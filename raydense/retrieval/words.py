"""Splits texts into BM25's words: bm25s's tokeniser (two or more word characters, lower case), stop words left out, Snowball stems.

Chinese, Japanese and Korean do not separate all words by blanks: in a run of their characters each pair of neighbours is a
word, and so is a single character, as in Lucene's CJKAnalyzer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import Stemmer
from bm25s.tokenization import Tokenizer
from numpy.typing import NDArray

from raydense.errors import InputError, did_you_mean

NONE = "none"
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0002fa1f"
_RUN = re.compile(f"[{_CJK}]+")
_WORD = rf"(?u)\b\w\w+\b|[{_CJK}]"


@dataclass(frozen=True)
class Words:
    """How texts become words; `stemmer` and `stopwords` as in IndexSettings."""

    stemmer: str
    stopwords: str

    def tokenizer(self) -> Tokenizer:
        """A tokeniser with an empty vocabulary; InputError on an unknown stemmer or list of stop words."""
        if self.stemmer != NONE and self.stemmer not in Stemmer.algorithms():
            raise InputError(f"no stemmer {self.stemmer!r}", "stemmer", did_you_mean(self.stemmer, [*Stemmer.algorithms(), NONE]))
        stemmer = None if self.stemmer == NONE else Stemmer.Stemmer(self.stemmer)
        try:
            return Tokenizer(splitter=_WORD, stopwords=None if self.stopwords == NONE else self.stopwords, stemmer=stemmer)
        except ValueError:
            known = [*_stopword_languages(), NONE]
            raise InputError(f"no stop words {self.stopwords!r}", "stopwords", did_you_mean(self.stopwords, known)) from None

    def split(self, texts: list[str], tokenizer: Tokenizer) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The words of all texts one after another, as ids of `tokenizer`'s growing vocabulary, and each text's count of them."""
        texts = [text if text.isascii() else _RUN.sub(_neighbours, text) for text in texts]
        lists = list(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        flat = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in lists]) if lists else np.empty(0, np.int32)
        return flat, lengths

    def query_ids(self, queries: list[str], vocabulary: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The words of each query that are in `vocabulary`, as positions in it, one query after another; and the start of each query, [n + 1].

        `vocabulary` is sorted, as an index's is.
        """
        tokenizer = self.tokenizer()
        flat, lengths = self.split(queries, tokenizer)
        position = positions(pa.array(list(tokenizer.get_vocab_dict()), pa.string()), vocabulary)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        ids = position[flat]
        known = ids >= 0
        counts = np.bincount(owner[known], minlength=len(lengths))
        return ids[known], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def positions(words: pa.Array, vocabulary: pa.Array) -> NDArray[np.int32]:
    """The position of each word in a sorted vocabulary, int32 [n]; -1 if it is absent.

    A binary search for all words at once: `index_in` would hash the whole vocabulary at each call.
    """
    if not len(vocabulary):
        return np.full(len(words), -1, np.int32)
    low, high = np.zeros(len(words), np.int64), np.full(len(words), len(vocabulary), np.int64)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        after = pc.less(_taken(vocabulary, middle), words).to_numpy(zero_copy_only=False) & open_
        low, high = np.where(after, middle + 1, low), np.where(after, high, middle)
    there = pc.equal(_taken(vocabulary, low), words).to_numpy(zero_copy_only=False)
    return np.where(there, low, -1).astype(np.int32)


def _taken(vocabulary: pa.Array, at: NDArray[np.int64]) -> pa.Array:
    return vocabulary.take(pa.array(np.minimum(at, len(vocabulary) - 1)))


def _neighbours(run: re.Match[str]) -> str:
    """The pairs of neighbouring characters of a run, separated by blanks."""
    found = run[0]
    return f" {' '.join(map(''.join, pairwise(found))) or found} "


def _stopword_languages() -> list[str]:
    return ["da", "de", "en", "en_plus", "es", "fr", "it", "ko", "nl", "no", "pt", "ru", "sv", "tr", "zh"]
