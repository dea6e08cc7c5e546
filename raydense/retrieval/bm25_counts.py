"""Pass 1 of a BM25 index: counts the words of a corpus part by part, each in a task of its own, into files of the draft.

A part is a range of passages of one shard with a bounded length of text, so that the memory of a task does not depend on the corpus.
Its vocabulary is sorted, and its pairs of a word and a passage are in the order of words, then passages: what holds a range of
words of the whole vocabulary is then one slice of each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.generated import Generated
from raydense.data.store import PassageStore, full_text
from raydense.data.tables import write_arrow
from raydense.retrieval.word_rules import RULES
from raydense.retrieval.words import Vocabulary, Words
from raydense.storage import Draft

PART_BYTES = 32 * 2**20  # of text
_ROW_BYTES = 32  # what a passage counts beyond its text
_BLOCK_ROWS = 8_192
_SAMPLES, _SAMPLE_ROWS = 32, 64
_LARGEST_KEPT = 500_000  # words that a worker process keeps from one part to the next, so that their stems are known
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Inputs:
    """What the driver and each task open: the corpus and the queries that expand it, with the fingerprints that the stage began with."""

    corpus: str
    generated: str | None
    prints: dict[str, str]

    def open(self) -> tuple[PassageStore, Generated | None]:
        """InputError if one of them was replaced since."""
        store = PassageStore(self.corpus, self.prints["corpus"])
        return store, Generated(self.generated, store, self.prints["expand"]) if self.generated else None


def texts_of(store: PassageStore, generated: Generated | None, start: int, stop: int) -> pa.ChunkedArray:
    """The text of each passage of rows start..stop-1, with the queries generated for it."""
    texts = full_text(store.slice(start, stop, ["title", "text"]))
    if generated is None:
        return texts
    return pc.binary_join_element_wise(texts, pc.binary_join(generated.slice(start, stop), " "), " ")


@dataclass(frozen=True)
class Part:
    """Rows start..stop-1 of the corpus, in a shard that begins at row `base`; and the names of its files in the draft, others by other rules."""

    base: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def words(self) -> str:
        """Its words, sorted, with the number of its passages that have each: an Arrow file of `word` and `df`."""
        return f"words{RULES}-{self.start:010d}-{self.stop:010d}.arrow"

    @property
    def counts(self) -> str:
        """int32: the length of each passage; the number of passages that have each word; then by word these passages, as rows of the shard, and how often each has it."""
        return f"counts{RULES}-{self.start:010d}-{self.stop:010d}.int32"

    @property
    def ids(self) -> str:
        """int32: the position of each of its words in the vocabulary of the index."""
        return f"ids{RULES}-{self.start:010d}-{self.stop:010d}.int32"


def parts_of(store: PassageStore, generated: Generated | None, ranges: list[tuple[int, int]]) -> list[Part]:
    """The parts of all shards, in order; each has up to PART_BYTES of text, or a single passage."""
    parts = []
    for base, stop in ranges:
        number, before = [], 0
        for start in range(base, stop, _BLOCK_ROWS):
            ends = before + np.cumsum(_bytes_of(store, generated, start, min(start + _BLOCK_ROWS, stop)))
            number.append(ends // PART_BYTES)
            before = int(ends[-1])
        starts = base + np.flatnonzero(np.diff(np.concatenate(number), prepend=-1))
        parts += [Part(base, *part) for part in zip(starts.tolist(), [*starts[1:].tolist(), stop], strict=True)]
    return parts


def _bytes_of(store: PassageStore, generated: Generated | None, start: int, stop: int) -> NDArray[np.int64]:
    plain = generated is None
    columns = store.slice(start, stop, ["title", "text"]).columns if plain else [texts_of(store, generated, start, stop)]
    text = sum(pc.binary_length(column).to_numpy().astype(np.int64) for column in columns)
    return np.asarray(text) + _ROW_BYTES


def sampled_pairs(store: PassageStore, generated: Generated | None, words: Words) -> int:
    """About how many pairs of a word and a passage the corpus has, from passages spread over it."""
    vocabulary, found, rows = words.vocabulary(), 0, 0
    for start in range(0, len(store), max(_SAMPLE_ROWS, len(store) // _SAMPLES)):
        texts = texts_of(store, generated, start, min(start + _SAMPLE_ROWS, len(store)))
        flat, lengths = vocabulary.split(texts.cast(pa.binary()).to_pylist())
        found += len(np.unique(np.repeat(np.arange(len(lengths)), lengths) << 32 | flat))
        rows += len(lengths)
    return found * len(store) // rows


def count(draft: Draft, inputs: Inputs, words: Words, part: Part) -> int:
    """Keep the files of a part, the counts last; returns its number of passages."""
    store, generated = inputs.open()
    vocabulary = _vocabulary(words)
    split = [
        vocabulary.split(texts_of(store, generated, at, min(at + _BLOCK_ROWS, part.stop)).cast(pa.binary()).to_pylist())
        for at in range(part.start, part.stop, _BLOCK_ROWS)
    ]
    flat, length = np.concatenate([ids for ids, _ in split]), np.concatenate([lengths for _, lengths in split])
    names, rank = _sorted_words(vocabulary, flat)
    row = np.arange(part.start - part.base, part.stop - part.base)
    pair, often = np.unique(rank[flat].astype(np.int64) << 32 | np.repeat(row, length), return_counts=True)
    df = np.bincount(pair >> 32, minlength=len(names)).astype(np.int32)
    draft.keep(part.words, lambda path: write_arrow(path, pa.table({"word": names, "df": df})))
    draft.keep(part.counts, lambda path: _write(path, [length, df, pair & 0xFFFFFFFF, often]))
    if len(vocabulary) > _LARGEST_KEPT:
        _vocabulary.cache_clear()
    return part.rows


def words_of(draft: Draft, part: Part) -> int:
    """The length of all passages of a part, which its counts begin with: the rest of that file is for those that score."""
    return int(np.frombuffer(draft.kept_head(part.counts, 4 * part.rows), np.int32).sum(dtype=np.int64))


@lru_cache(maxsize=1)
def _vocabulary(words: Words) -> Vocabulary:
    return words.vocabulary()


def _sorted_words(vocabulary: Vocabulary, flat: Ints) -> tuple[pa.Array, Ints]:
    """The words that occur in `flat`, sorted, and the place of each word of the vocabulary among them (0 for those that do not occur)."""
    all_names = vocabulary.names()
    occurs = np.zeros(len(all_names), np.bool_)
    occurs[flat] = True
    used = np.flatnonzero(occurs)
    names = pa.array([all_names[number] for number in used.tolist()], pa.string())
    order = pc.array_sort_indices(names)
    rank = np.zeros(len(all_names), np.int32)
    rank[used[order.to_numpy()]] = np.arange(len(used), dtype=np.int32)
    return names.take(order), rank


def _write(path: Path, arrays: list[NDArray[np.signedinteger[Any]]]) -> None:
    with open(path, "wb") as stream:
        for array in arrays:
            array.astype(np.int32).tofile(stream)
