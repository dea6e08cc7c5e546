"""Splits texts into BM25's words, as `word_rules` finds them: in lower case, stop words left out, Snowball stems; of ASCII those of bm25s's tokeniser."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import Stemmer
from bm25s.tokenization import Tokenizer
from numpy.typing import NDArray

from raydense.errors import InputError, did_you_mean
from raydense.ranges import ranges
from raydense.retrieval.word_rules import JOINS, PAIRED, RULES, VERSIONS, Rules, plain
from raydense.runtime.progress import say
from raydense.storage import Artifact, versions

NONE = "none"
_STEMMERS = "PyStemmer"
_NO_CACHE = 0  # of stems: emptying it takes longer than stemming
Ids = NDArray[np.int32]
Counts = NDArray[np.int64]

# Texts are split as UTF-8: ASCII in lower case, a blank for what is in no word; bytes of other characters stay.
_ASCII = bytes(byte if byte >= 128 or chr(byte).isalnum() or byte == ord("_") else 32 for byte in range(256)).lower()
_END, _BETWEEN = b"\xff", b" \xff "  # no byte of UTF-8
_SIGMA = "Σ".encode()
_MAY_BE_CJK = re.compile(rb"[\xe3-\xed\xef\xf0]")  # how these characters begin in UTF-8
_FEW = 32  # words of a query: for so few, Arrow's calls take longer than Python's
_NO_WORD, _TEXT_ENDS, _SEVERAL = -1, -2, -3


@dataclass(frozen=True)
class Words:
    """How texts become words; `stemmer` and `stopwords` as in IndexSettings, `rules` by their version."""

    stemmer: str
    stopwords: str
    rules: int = RULES

    def vocabulary(self) -> Vocabulary:
        """An empty vocabulary; InputError on an unknown stemmer or list of stop words, or rules of a newer raydense."""
        if self.rules not in VERSIONS:
            raise InputError(f"unknown rules of words, {self.rules}", "rules", "update raydense, or build the index again with this one")
        if self.stemmer != NONE and self.stemmer not in Stemmer.algorithms():
            raise InputError(f"no stemmer {self.stemmer!r}", "stemmer", did_you_mean(self.stemmer, [*Stemmer.algorithms(), NONE]))
        try:
            stopwords = Tokenizer(stopwords=self.stopwords).stopwords if self.stopwords != NONE else ()
        except ValueError:
            known = [*_stopword_languages(), NONE]
            raise InputError(f"no stop words {self.stopwords!r}", "stopwords", did_you_mean(self.stopwords, known)) from None
        stem = str if self.stemmer == NONE else Stemmer.Stemmer(self.stemmer, _NO_CACHE).stemWord
        return Vocabulary(frozenset(stopwords), stem, VERSIONS[self.rules])

    def query_ids(self, queries: list[str], vocabulary: pa.Array) -> tuple[Ids, Counts]:
        """The words of each query that are in `vocabulary`, as positions in it, one query after another; and the start of each query, [n + 1].

        `vocabulary` is sorted, as an index's is.
        """
        own = self.vocabulary()
        flat, lengths = own.split([query.encode(errors="replace") for query in queries])
        owner = np.repeat(np.arange(len(lengths)), lengths)
        ids = positions(pa.array(own.names(), pa.string()), vocabulary)[flat]
        known = ids >= 0
        counts = np.bincount(owner[known], minlength=len(lengths))
        return ids[known], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def words_of(index: Artifact) -> Words:
    """How a BM25 index split its texts, and so its queries; says so if this process has another version of the stemmers."""
    made, here = index.manifest.get("versions", {}).get(_STEMMERS), versions()[_STEMMERS]
    if made not in (None, here) and index.summary["stemmer"] != NONE:
        fix = f"build it again, or install {_STEMMERS} {made}"
        say(f"{index.place}: was built with {_STEMMERS} {made}, here is {here}: words whose stems differ are not found; {fix}")
    return Words(index.summary["stemmer"], index.summary["stopwords"], index.summary.get("rules", 1))


class Vocabulary(dict[bytes, int]):
    """The words of texts, numbered as they first occur.

    The dict's keys are what stands between blanks; Python runs only for one that is new. Its value is the number of its word, or a code.
    """

    def __init__(self, stopwords: frozenset[str], stem: Callable[[str], str], rules: Rules) -> None:
        super().__init__({_END: _TEXT_ENDS})
        self._stopwords, self._stem, self._rules = stopwords, stem, rules
        self._numbers: dict[str, int] = {}
        self._several, self._several_ends = array("i"), array("q", [0])  # the words of keys that have several, and where each key's end

    def names(self) -> list[str]:
        """The words by number."""
        return list(self._numbers)

    def split(self, texts: list[bytes]) -> tuple[Ids, Counts]:
        """The numbers of the words of all texts (UTF-8), one text after another, and each text's count of them."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        texts = _with_pairs(texts, self._rules.kinds)
        joined = _BETWEEN.join(texts)
        if _SIGMA in joined:  # its lower case depends on the characters around it
            joined = _BETWEEN.join([text.decode().lower().encode() if _SIGMA in text else text for text in texts])
        found = joined.translate(_ASCII).split()
        codes = np.fromiter(map(self.__getitem__, found), np.int32, len(found))
        ends = np.flatnonzero(codes == _TEXT_ENDS)
        counts = (codes >= 0).astype(np.int64)
        ids = codes[codes >= 0] if codes.min(initial=0) > _SEVERAL else self._spread(codes, counts)
        before = np.concatenate([[0], np.cumsum(counts)])
        return ids, np.diff(before[np.concatenate([[0], ends, [len(codes)]])])

    def _spread(self, codes: Ids, counts: Counts) -> Ids:
        """The words of all codes, where some have several; sets the number of words of these in `counts`."""
        flat, ends = np.array(self._several), np.array(self._several_ends)
        has_several = codes <= _SEVERAL
        key = _SEVERAL - codes[has_several]
        sizes = np.diff(ends)[key]
        counts[has_several] = sizes
        of_several = np.repeat(has_several, counts)
        ids = np.empty(len(of_several), np.int32)
        ids[~of_several] = codes[codes >= 0]
        ids[of_several] = flat[ranges(ends[key], sizes)]
        return ids

    def __missing__(self, key: bytes) -> int:
        ids = [number for number in map(self._number, self._rules.words(key.decode().lower())) if number >= 0]
        if len(ids) > 1:
            code = _SEVERAL - len(self._several_ends) + 1
            self._several.extend(ids)
            self._several_ends.append(len(self._several))
        else:
            code = ids[0] if ids else _NO_WORD
        self[key] = code
        return code

    def _number(self, word: str) -> int:
        if word in self._stopwords or (len(word) == 1 and word.isascii()):
            return _NO_WORD
        return self._numbers.setdefault(self._stem(word), len(self._numbers))


def _with_pairs(texts: list[bytes], kinds: NDArray[np.uint8]) -> list[bytes]:
    """The texts (UTF-8) with the pairs of neighbouring characters of each run of PAIRED, or its only character, between blanks."""
    some = [number for number, text in enumerate(texts) if not text.isascii() and _MAY_BE_CJK.search(text)]
    if not some:
        return texts
    together = _END.join([texts[number] for number in some]).decode(errors="surrogateescape")
    chars = _code_points(together)
    kind = kinds[chars]
    if (kind & JOINS).any():
        chars = _code_points(plain(together.lower()))
        kind = kinds[chars]
    split = _paired(chars, (kind & PAIRED).astype(np.bool_)).tobytes().decode("utf-32-le", "surrogatepass").encode(errors="surrogateescape")
    texts = texts.copy()
    for number, text in zip(some, split.split(_END), strict=True):
        texts[number] = text
    return texts


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _paired(chars: NDArray[np.uint32], paired: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """The characters, where one within a run of `paired` becomes `x x`, the first ` x`, the last `x `, and an only one ` x `."""
    inside = np.concatenate([[False], paired, [False]])
    first, last = inside[1:-1] & ~inside[:-2], inside[1:-1] & ~inside[2:]
    within = inside[1:-1] & ~first & ~last
    counts = np.ones(len(chars), np.int8)
    counts[within] = 3
    counts += first
    counts += last
    ends = np.cumsum(counts, dtype=np.int32)
    found = np.repeat(chars, counts)
    found[ends[within] - 2] = found[ends[last] - 1] = ord(" ")
    found[(ends - counts)[first]] = ord(" ")
    return found


def positions(words: pa.Array, vocabulary: pa.Array) -> NDArray[np.int32]:
    """The position of each word in a sorted vocabulary, int32 [n]; -1 if it is absent.

    A binary search, for many words at once: `index_in` would hash the whole vocabulary at each call.
    """
    if not len(vocabulary):
        return np.full(len(words), -1, np.int32)
    low = _places(words, vocabulary)
    there = pc.equal(_taken(vocabulary, low), words).to_numpy(zero_copy_only=False)
    return np.where(there, low, -1).astype(np.int32)


def _places(words: pa.Array, vocabulary: pa.Array) -> NDArray[np.int64]:
    """Where each word is in the vocabulary, or would be."""
    if len(words) < _FEW:
        of_one = partial(bisect_left, range(len(vocabulary)), key=lambda at: vocabulary[at].as_py())
        return np.array([of_one(word) for word in words.to_pylist()], np.int64)
    low, high = np.zeros(len(words), np.int64), np.full(len(words), len(vocabulary), np.int64)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        after = pc.less(_taken(vocabulary, middle), words).to_numpy(zero_copy_only=False) & open_
        low, high = np.where(after, middle + 1, low), np.where(after, high, middle)
    return low


def _taken(vocabulary: pa.Array, at: NDArray[np.int64]) -> pa.Array:
    return vocabulary.take(pa.array(np.minimum(at, len(vocabulary) - 1)))


def _stopword_languages() -> list[str]:
    return ["da", "de", "en", "en_plus", "es", "fr", "it", "ko", "nl", "no", "pt", "ru", "sv", "tr", "zh"]
