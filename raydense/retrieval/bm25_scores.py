"""Pass 2 of a BM25 index: writes a shard's eager scores, word after word, from the counts of its parts.

The words are taken in ranges of a bounded number of pairs; each part holds a range as one slice. The scores are those of bm25s:
score(w, p) = idf(w) tf / (tf + k1 (1 - b + b |p| / mean)) (Lucene's, Kamphuis et al. 2020, Which BM25 do you mean?; eager: Lu 2024, BM25S).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import FileIO
from itertools import pairwise
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.ranges import ranges
from raydense.retrieval.bm25_counts import Ints, Part
from raydense.retrieval.bm25_shard import PARTS
from raydense.retrieval.bm25_vocabulary import VOCABULARY
from raydense.storage import Draft

PAIRS = 8 * 2**20  # of a word and a passage, that a range of words may have
_OPEN = 512  # files that a worker process has open besides
Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


def shard_file(shard: int, part: str) -> str:
    """The name of one of a shard's three arrays: `scores` and `passages` (local rows) word after word, and `starts` of each word."""
    return f"shard-{shard:05d}.{part}.npy"


@dataclass(frozen=True)
class Weighting:
    """What the score of a word in a passage depends on besides the two; `mean` is the mean length of a passage."""

    mean: float
    k1: float
    b: float

    def scores(self, often: Ints, length: Ints, idf: Floats) -> Floats:
        """In float64, operation by operation as bm25s does them, then float32 as it stores them."""
        tf = often.astype(np.float64)
        scores: Floats = (idf * (tf / (self.k1 * ((1 - self.b) + self.b * length / self.mean) + tf))).astype(np.float32)
        return scores


class _Counts:
    """The files of a part, read in slices: mapped ones would count as memory of the process.

    They stay open meanwhile, which takes minutes: the cache of a bucket may delete them.
    """

    def __init__(self, draft: Draft, part: Part, files: ExitStack) -> None:
        self.part = part
        self._counts = files.enter_context(FileIO(draft.kept_whole(part.counts)))
        self._ids = files.enter_context(FileIO(draft.kept_whole(part.ids)))
        self._words = _numbers(self._ids)
        self._pairs = (_numbers(self._counts) - part.rows - self._words) // 2

    def lengths(self) -> Ints:
        return _read(self._counts, 0, self.part.rows)

    def words(self, start: int = 0, stop: int | None = None) -> tuple[Ints, Ints]:
        """The position of each word in the vocabulary, rising, and the number of its passages."""
        count = (self._words if stop is None else stop) - start
        return _read(self._ids, start, count), _read(self._counts, self.part.rows + start, count)

    def pairs(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """The passages of the pairs start..stop-1, and how often each has the word."""
        first = self.part.rows + self._words + start
        return _read(self._counts, first, stop - start), _read(self._counts, first + self._pairs, stop - start)


def _numbers(file: FileIO) -> int:
    return os.fstat(file.fileno()).st_size // 4


def _read(file: FileIO, first: int, count: int) -> Ints:
    """`count` numbers from the one at `first` on."""
    file.seek(4 * first)
    return np.fromfile(file, np.int32, count)


def score(draft: Draft, parts: list[Part], shard: int, weighting: Weighting) -> int:
    """Commit a shard's arrays; returns its number of passages."""
    rows = sum(part.rows for part in parts)
    with draft.aside() as aside, ExitStack() as files:
        writer = _ShardWriter(draft, parts, weighting, files)
        with open(aside / PARTS[0], "wb") as scores, open(aside / PARTS[1], "wb") as passages:
            writer.write(scores, passages)
        np.save(aside / f"{PARTS[2]}.npy", writer.starts)
        os.replace(aside / f"{PARTS[2]}.npy", aside / PARTS[2])
        for name in PARTS:
            draft.commit(shard_file(shard, name), partial(os.replace, aside / name), rows)
    return rows


def _let_open(files: int) -> None:
    """Let this process open so many files more: `ray start` leaves the limit at that of its shell, 1,024 as a rule."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files + _OPEN
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard))


class _ShardWriter:
    """Writes the pairs of a shard in the order of words, then passages; holds PAIRS of them, and a few numbers of each word and passage."""

    def __init__(self, draft: Draft, parts: list[Part], weighting: Weighting, files: ExitStack) -> None:
        self._weighting = weighting
        _let_open(2 * len(parts))
        self._counts = [_Counts(draft, part, files) for part in parts]
        self._lengths = np.concatenate([counts.lengths() for counts in self._counts])
        self._idf = pa.ipc.open_file(pa.memory_map(str(draft.read(VOCABULARY)))).read_all()["idf"].to_numpy()
        df = np.zeros(len(self._idf), np.int64)
        for counts in self._counts:
            ids, mine = counts.words()
            df[ids] += mine
        self.starts: Longs = np.concatenate([[0], np.cumsum(df)]).astype(np.int64)

    def write(self, scores: BinaryIO, passages: BinaryIO) -> None:
        """Write both arrays as NumPy does: a header, then the values."""
        for stream, kind in ((scores, np.float32), (passages, np.int32)):
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": (int(self.starts[-1]),)}
            np.lib.format.write_array_header_1_0(stream, header)
        edges = word_ranges(self.starts)
        cuts = [_cuts(counts, edges) for counts in self._counts]
        for number, (low, high) in enumerate(pairwise(edges.tolist())):
            slices = (
                self._slice(counts, *cut[:, number : number + 2].ravel().tolist()) for counts, cut in zip(self._counts, cuts, strict=True)
            )
            # of a single word the slices follow each other: its passages rise from part to part
            for values, rows in self._placed(slices, low, high) if high - low > 1 else (each[2:] for each in slices):
                values.tofile(scores)
                rows.tofile(passages)

    def _slice(self, counts: _Counts, word: int, word_end: int, pair: int, pair_end: int) -> tuple[Ints, Ints, Floats, Ints]:
        """The words of a part's slice, the number of pairs of each, and the scores and passages of its pairs."""
        ids, df = counts.words(word, word_end)
        rows, often = counts.pairs(pair, pair_end)
        return ids, df, self._weighting.scores(often, self._lengths[rows], np.repeat(self._idf[ids], df)), rows

    def _placed(self, slices: Iterable[tuple[Ints, Ints, Floats, Ints]], low: int, high: int) -> list[tuple[Floats, Ints]]:
        """The scores and passages of the words low..high-1, by word; the slices come in the order of passages."""
        first = int(self.starts[low])
        size, end = int(self.starts[high]) - first, self.starts[low:high] - first
        scores, passages = np.empty(size, np.float32), np.empty(size, np.int32)
        for ids, df, values, rows in slices:
            at = ranges(end[ids - low], df)
            end[ids - low] += df
            scores[at], passages[at] = values, rows
        return [(scores, passages)]


def word_ranges(starts: Longs) -> Longs:
    """The edges of ranges of words of up to PAIRS pairs each, or of a single word with more."""
    edges = [0]
    while edges[-1] < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[edges[-1]] + PAIRS, side="right")) - 1
        edges.append(max(end, edges[-1] + 1))
    return np.array(edges)


def _cuts(counts: _Counts, edges: Longs) -> Longs:
    """Where the ranges begin and end among a part's words, and among its pairs: int64 [2, edges]."""
    ids, df = counts.words()
    words = np.searchsorted(ids, edges)
    return np.stack([words, np.concatenate([[0], np.cumsum(df)])[words]])
