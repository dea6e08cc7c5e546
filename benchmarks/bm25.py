"""BM25 here against bm25s alone: the same synthetic corpus, words and queries, taking turns in one run.

    python benchmarks/bm25.py write FOLDER PASSAGES        # a corpus of 60 to 100 words a passage, and 500 queries
    python benchmarks/bm25.py build FOLDER [--shards 1]    # passages/s, and the most memory of each process
    python benchmarks/bm25.py words FOLDER [--rows 50000]  # passages/s of splitting into words, on one core; of any FOLDER/corpus
    python benchmarks/bm25.py search FOLDER [--k 100]      # queries/s on one core; FOLDER/index is what `build` made

`words` and `search` measure the CPU time of one thread, so that other work on the machine counts little. The numba backend of bm25s takes part
where numba is installed; it is no dependency here. Scores must be equal, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import bm25s
import numpy as np
import psutil
import pyarrow as pa
import Stemmer
from bm25s.tokenization import Tokenizer
from numpy.typing import NDArray
from turns import Ratio, in_turns, ratios

from raydense.data.store import CorpusWriter, PassageStore, full_text
from raydense.retrieval.bm25_shard import PARTS, Bm25Shard
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.words import Words
from raydense.storage import Artifact, Draft

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


def build(folder: Path, shards: int) -> None:
    """Make FOLDER/index; print the time, and the peak memory of the driver and of the largest task of each pass."""
    shutil.rmtree(folder / "index", ignore_errors=True)
    peaks: dict[str, int] = {}
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(peaks, over))
    watcher.start()
    begun = time.perf_counter()
    try:
        made = index(IndexSettings(kind="bm25", corpus=str(folder / "corpus"), shards=shards, output=str(folder / "index")))
    finally:
        seconds = time.perf_counter() - begun
        over.set()
        watcher.join()
    print(f"{made.rows:,} passages, {shards} shards: {seconds:.0f} s, {made.rows / seconds:,.0f} passages/s")
    print(", ".join(f"{name} {peak / 2**20:,.0f} MiB" for name, peak in sorted(peaks.items())))


def _watch(peaks: dict[str, int], over: threading.Event) -> None:
    driver = psutil.Process()
    while not over.wait(0.1):
        for process in [driver, *driver.children(recursive=True)]:
            try:
                title = "driver" if process == driver else " ".join(process.cmdline()).strip()
                if title in {"driver", "ray::count", "ray::score"}:
                    peaks[title] = max(peaks.get(title, 0), process.memory_info().rss)
            except psutil.Error:
                continue


def _report(taken: dict[str, list[float]], count: int, unit: str) -> None:
    seconds = {name: median(each) for name, each in taken.items()}
    first = next(iter(seconds))
    for name, each in seconds.items():
        print(f"{name:<24} {count / each:>10,.0f} {unit}/s  {seconds[first] / each:6.2f} of {first}")


def words(folder: Path, rows: int) -> dict[str, list[float]]:
    """The CPU seconds of each turn of splitting texts into words."""
    store = PassageStore(folder / "corpus")
    texts = full_text(store.slice(0, min(rows, len(store)), ["title", "text"])).combine_chunks()
    plain, encoded = texts.to_pylist(), texts.cast(pa.binary()).to_pylist()

    def theirs() -> None:
        tokenizer = Tokenizer(stopwords="en", stemmer=Stemmer.Stemmer("english"))
        list(tokenizer.streaming_tokenize(plain, update_vocab=True, allow_empty=False))

    work = {"bm25s": theirs, "here": lambda: Words("english", "en").vocabulary().split(encoded)}
    seconds = in_turns(work, 3, time.process_time)
    _report(seconds, len(texts), "passages")
    return seconds


def search(folder: Path, k: int, rounds: int) -> dict[str, list[float]]:
    """The CPU seconds of each turn of ours, and of bm25s's backends over the same scores."""
    made = Artifact.open(folder / "index", "index")
    if len(made.summary["shards"]) > 1:
        raise SystemExit("search: the index has more than one shard; build it with --shards 1")
    queries = (folder / "queries.txt").read_text().split("\n")
    vocabulary = pa.ipc.open_file(pa.memory_map(str(made.file("vocabulary.arrow")))).read_all()["word"].combine_chunks()
    ids, starts = Words("english", "en").query_ids(queries, vocabulary)
    files = [made.file(f"shard-00000.{part}.npy") for part in PARTS]
    shard, alone = Bm25Shard(files, 0, made.rows), bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    alone.scores = dict(zip(("data", "indices", "indptr"), map(np.load, files), strict=True)) | {"num_docs": made.rows}
    alone.unique_token_ids_set, alone.nonoccurrence_array = set(range(len(vocabulary))), None
    asked = [ids[low:high].tolist() for low, high in pairwise(starts.tolist())]
    found: dict[str, NDArray[np.float32]] = {}

    def theirs(backend: str) -> None:
        alone.backend = backend
        how = {"backend_selection": "numpy"} if backend == "numpy" else {}
        found[backend] = alone.retrieve(asked, k=k, show_progress=False, n_threads=0, **how).scores

    def ours() -> None:
        found["here"] = shard.nearest(ids, starts, k)[0]

    backends = ["numpy", *(["numba"] if importlib.util.find_spec("numba") else [])]
    work: dict[str, Callable[[], object]] = {f"bm25s {backend}": lambda backend=backend: theirs(backend) for backend in backends}
    seconds = in_turns(work | {"here": ours}, rounds, time.process_time)
    _report(seconds, len(asked), "queries")
    for scores in found.values():
        np.testing.assert_array_equal(np.maximum(found["here"], 0), scores)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "build", "words", "search"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("passages", type=int, nargs="?", default=300_000)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50_000, help="passages that `words` splits")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.command == "write":
        write(asked.folder, asked.passages)
    elif asked.command == "build":
        build(asked.folder, asked.shards)
    elif asked.command == "words":
        words(asked.folder, asked.rows)
    else:
        search(asked.folder, asked.k, asked.rounds)


def small(work: Path) -> dict[str, Ratio]:
    """Splitting and searching of 50,000 passages, by the CPU time of one thread, against bm25s with NumPy."""
    write(work, 50_000)
    index(IndexSettings(kind="bm25", corpus=str(work / "corpus"), shards=1, output=str(work / "index")))
    split, searched = words(work, 20_000), search(work, 100, 5)
    return {f"words, {k}": v for k, v in ratios(split, "bm25s").items()} | {
        f"search, {k}": v for k, v in ratios(searched, "bm25s numpy").items()
    }


if __name__ == "__main__":
    main()
