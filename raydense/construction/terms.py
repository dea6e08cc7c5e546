"""The terms of a text, where they stand in it, and how many passages of a corpus have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pyarrow as pa
from bm25s.tokenization import Tokenizer

from raydense.data.store import PassageStore, full_text
from raydense.errors import InputError
from raydense.retrieval.kinds.bm25 import expanded_with
from raydense.retrieval.word_rules import places
from raydense.retrieval.words import Words, positions, words_of
from raydense.runtime.progress import Progress
from raydense.storage import Artifact

_STOPWORDS = "en_plus"  # with question words, which are no reason why a passage is wrong
_WORDS = Words("english", _STOPWORDS)
_BLOCK_ROWS = 8_192
_LARGEST_KEPT = 500_000  # words that a vocabulary may have before a new one is begun: what bounds the memory
_FREQUENT_PASSAGES, _FREQUENT, _RARE = 3, 1e-4, 0.01
Counter = Callable[[list[str]], dict[str, int]]
"""How many passages of the corpus have each of some words."""


@dataclass(frozen=True)
class Term:
    """A word as BM25 has it (a stem, or a pair of neighbouring characters), and where it stands in the text."""

    word: str
    start: int
    end: int
    paired: bool = False
    """Whether it is of a script without blanks between words, where a pair may be the end of one word and the beginning of another."""


class Splitter:
    """Splits texts into terms: BM25's words without stop words, with their places."""

    def __init__(self, words: Words = _WORDS) -> None:
        self.words = words
        self._vocabulary = self.words.vocabulary()

    def terms(self, text: str) -> list[Term]:
        """The terms of a text in their order."""
        spans = [(start, end, paired) for start, end, paired in places(text) if not (paired and text[start:end] in chinese_stopwords())]
        numbers, counts = self._vocabulary.split([text[start:end].encode(errors="replace") for start, end, _ in spans])
        names, ends = self._vocabulary.names(), np.cumsum(counts).tolist()
        return [
            Term(names[number], *span)
            for span, count, end in zip(spans, counts.tolist(), ends, strict=True)
            for number in numbers[end - count : end].tolist()
        ]


@cache
def chinese_stopwords() -> frozenset[str]:
    """The Chinese stop words of bm25s of two characters, as what, how and which."""
    return frozenset(word for word in Tokenizer(stopwords="zh").stopwords if len(word) == 2)


def stopword_places(text: str) -> set[int]:
    """Where the characters of Chinese stop words are: a pair of one of them and the next character is no word."""
    return {at + more for at in range(len(text) - 1) if text[at : at + 2] in chinese_stopwords() for more in (0, 1)}


class Frequencies:
    """How many of the passages of a corpus have each word, asked when first needed."""

    def __init__(self, rows: int, counter: Counter) -> None:
        self.rows, self._counter = rows, counter
        self._passages: dict[str, int] = {}

    def ask(self, words: set[str]) -> None:
        """Count these words; those of a later question are counted alone, in a pass of their own."""
        unknown = sorted(words - self._passages.keys())
        if unknown:
            self._passages |= self._counter(unknown)

    def passages(self, word: str) -> int:
        """The number of passages that have a word which was asked for."""
        return self._passages[word]

    def idf(self, word: str) -> float:
        """ln(1 + (rows - df + 0.5) / (df + 0.5)), as Lucene's BM25 has it."""
        df = self._passages[word]
        return math.log(1 + (self.rows - df + 0.5) / (df + 0.5))

    def is_rare(self, word: str) -> bool:
        """Whether at most one passage of a hundred has it: what names entities, and is no general word of the corpus."""
        return self._passages[word] <= max(1.0, _RARE * self.rows)

    def is_frequent(self, word: str) -> bool:
        """Whether at least three passages, and one of ten thousand, have it: a spelling that somebody may have meant."""
        return self._passages[word] >= max(_FREQUENT_PASSAGES, _FREQUENT * self.rows)


def counting(store: PassageStore, words: Words) -> Counter:
    """Counts in the corpus, by blocks: memory for the words asked for and half a million more."""

    def count(wanted: list[str]) -> dict[str, int]:
        place, found = {word: number for number, word in enumerate(wanted)}, np.zeros(len(wanted), np.int64)
        vocabulary, places = words.vocabulary(), np.empty(0, np.int64)
        with Progress("analyse: words", len(store), "passages") as progress:
            for start, stop in _blocks(store):
                if len(vocabulary) > _LARGEST_KEPT:
                    vocabulary, places = words.vocabulary(), np.empty(0, np.int64)
                texts = full_text(store.slice(start, stop, ["title", "text"])).cast(pa.binary()).to_pylist()
                numbers, lengths = vocabulary.split(texts)
                new = [place.get(name, -1) for name in vocabulary.names()[len(places) :]]
                places = np.concatenate([places, np.array(new, np.int64)])
                at = places[numbers]
                passage = np.repeat(np.arange(stop - start), lengths)[at >= 0]
                once = np.unique(passage * len(wanted) + at[at >= 0])
                found += np.bincount(once % len(wanted), minlength=len(wanted))
                progress.add(stop - start)
        return dict(zip(wanted, found.tolist(), strict=True))

    return count


def _blocks(store: PassageStore) -> Iterator[tuple[int, int]]:
    for first, last in store.shards:
        yield from ((start, min(start + _BLOCK_ROWS, last)) for start in range(first, last, _BLOCK_ROWS))


def from_index(index: Artifact, store: PassageStore) -> tuple[Words, Counter]:
    """How a BM25 index split texts, and the counter that reads its vocabulary; InputError on another index, or one of another corpus.

    Stop words count as in no passage, whatever the index has left out.
    """
    if index.summary.get("kind") != "bm25":
        raise InputError("is no bm25 index", index.place, "give one of `raydense index --kind bm25`, or leave it out")
    if expanded_with(index):
        raise InputError("has the words of generated queries too", index.place, "give an index of the passages alone, or leave it out")
    store.refuse_rows_of_another(index)
    stopwords = Tokenizer(stopwords=_STOPWORDS).stopwords
    table = pa.ipc.open_file(pa.memory_map(str(index.file("vocabulary.arrow")))).read_all()
    vocabulary, idf = table["word"].combine_chunks(), table["idf"].combine_chunks()

    def count(wanted: list[str]) -> dict[str, int]:
        at = np.where([word in stopwords for word in wanted], -1, positions(pa.array(wanted, pa.string()), vocabulary))
        value = idf.take(pa.array(np.maximum(at, 0))).to_numpy().astype(np.float64)
        passages = np.where(at >= 0, np.rint((len(store) + 1) / np.exp(value) - 0.5), 0).astype(np.int64)  # the formula of `idf`, solved
        return dict(zip(wanted, passages.tolist(), strict=True))

    return replace(words_of(index), stopwords=_STOPWORDS), count
