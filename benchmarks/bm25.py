"""BM25 here against bm25s alone, in one run over one synthetic corpus.

python benchmarks/bm25.py write FOLDER PASSAGES        # a corpus of 60 to 100 words a passage, and 500 queries
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import CorpusWriter
from raydense.storage import Draft

_STEP = 50_000
_DISTINCT, _BEND = 2_000_000, 20_000
_STOP = ["the", "of", "and", "in", "to", "a", "is", "was", "for", "as", "on", "by", "with", "that", "at", "it", "be", "an", "are", "this"]
_QUESTION = [
    "who",
    "what",
    "when",
    "where",
    "how",
    "many",
    "which",
    "did",
    "does",
    "do",
    "you",
    "there",
    "first",
    "name",
    "world",
    "play",
    "between",
    "used",
    "from",
    "made",
]


class Zipf:
    """Texts whose words have about the frequencies of English: as 1 / rank for the first 20,000, and 1 / rank ** 1.8 beyond."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        rank = np.arange(_DISTINCT) + 2.7
        weights = np.where(rank < _BEND, 1 / rank, _BEND**0.8 / rank**1.8)
        self._ends = np.cumsum(weights / weights.sum())
        plain = [*_STOP, *_QUESTION, *map(_word, range(_DISTINCT - len(_STOP) - len(_QUESTION)))]
        self._pool = pa.array([*plain, *(f"{word.capitalize()}," for word in plain)])

    def texts(self, lengths: NDArray[np.int64], skip: int = 0) -> pa.Array:
        """A text of each length; `skip` leaves out the most frequent words."""
        count = int(lengths.sum())
        low = self._ends[skip - 1] if skip else 0.0
        rank = np.searchsorted(self._ends, self._rng.uniform(low, 1, count)).clip(max=_DISTINCT - 1)
        rank += _DISTINCT * (self._rng.random(count) < 0.1)
        words = self._pool.take(pa.array(rank))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        return pa.compute.binary_join(pa.ListArray.from_arrays(offsets, words), " ")

    def passages(self, count: int) -> Iterator[pa.Table]:
        for first in range(0, count, _STEP):
            rows = np.arange(first, min(first + _STEP, count))
            ids = pa.compute.binary_join_element_wise("p", pa.compute.cast(pa.array(rows), pa.string()), "")
            texts = self.texts(self._rng.integers(58, 99, len(rows)))
            yield pa.table({"passage_id": ids, "title": self.texts(np.full(len(rows), 2), 100), "text": texts})

    def queries(self, count: int) -> list[str]:
        """Each of a question word, a stop word or two, and two to six words as they are in passages."""
        parts = [self.texts(self._rng.integers(2, 7, count)), self.texts(self._rng.integers(1, 3, count), 30)]
        first = [_QUESTION[i] for i in self._rng.integers(0, len(_QUESTION), count)]
        return [f"{a} {b} {c}" for a, b, c in zip(first, *(part.to_pylist() for part in parts), strict=True)]


def _word(number: int) -> str:
    """Letters that no other number has: syllables, and for every third a suffix that a stemmer takes off; every fiftieth has an accent."""
    syllables, rest = [], number + 200
    while rest:
        rest, digit = divmod(rest, 70)
        syllables.append("bdfgklmnprstvz"[digit % 14] + "aeiou"[digit // 14])
    return "".join(syllables) + ("ing" if number % 3 == 0 else "s" if number % 3 == 1 else "") + ("é" if number % 50 == 0 else "")


def write(folder: Path, passages: int) -> None:
    zipf = Zipf()
    writer = CorpusWriter(Draft.open(folder / "corpus", "corpus", {"passages": passages}), 500_000)
    for table in zipf.passages(passages):
        writer.add(table)
    writer.finish()
    (folder / "queries.txt").write_text("\n".join(zipf.queries(500)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("passages", type=int)
    asked = parser.parse_args()
    write(asked.folder, asked.passages)


if __name__ == "__main__":
    main()
