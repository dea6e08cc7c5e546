"""Builds a BM25 index in shards whose scores equal those of one index over everything, bit for bit.

Pass 1 counts words, shard by shard; the vocabulary, the document frequencies and the mean length are then those of the whole
corpus; pass 2 writes each shard's eager scores, as bm25s computes them:
score(w, p) = idf(w) tf / (tf + k1 (1 - b + b |p| / mean)), idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))
(Lucene's, Kamphuis et al. 2020, Which BM25 do you mean?; eager: Lu 2024, BM25S).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.generated import Generated
from raydense.data.store import PassageStore, full_text, store_of
from raydense.data.tables import write_arrow
from raydense.errors import InputError
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.tasks import run_tasks, shard_ranges
from raydense.retrieval.words import Words
from raydense.runtime.progress import Progress
from raydense.storage import Artifact, Draft

VOCABULARY = "vocabulary.arrow"
PARTS = ("scores", "passages", "starts")
_BLOCK_ROWS = 8_192


def shard_file(shard: int, part: str) -> str:
    """The name of one of a shard's three arrays: `scores` and `passages` (local rows) word after word, and `starts` of each word."""
    return f"shard-{shard:05d}.{part}.npy"


def build_bm25(draft: Draft, settings: IndexSettings) -> Artifact:
    """Commit `vocabulary.arrow`, three arrays per shard and `passage_ids.arrow`; finish the draft.

    With `expand`, a passage also has the words of the queries generated for it (doc2query, Nogueira and Lin 2019). Raises InputError
    on an unknown stemmer or list of stop words, more shards than passages, or queries of another corpus.
    """
    words = Words(settings.bm25.stemmer, settings.bm25.stopwords)
    words.tokenizer()
    inputs = _Inputs(str(settings.corpus), settings.expand, draft.made_from["inputs"])
    store, generated = inputs.open()
    if settings.shards > len(store):
        raise InputError(f"{settings.shards} shards of {len(store)} passages", "shards", f"give at most {len(store)}")
    ranges = shard_ranges(len(store), settings.shards)
    with Progress("index: words", len(store), "passages") as progress:
        calls = [(draft, inputs, words, i, *r) for i, r in enumerate(ranges) if draft.kept(_counts_name(i)) is None]
        for rows in run_tasks("index", _count, calls, settings.concurrency):
            progress.add(rows)
    mean_length = _global_statistics(draft, settings.shards, len(store))
    there = draft.committed()
    with Progress("index: scores", len(store), "passages") as progress:
        score_calls = [
            (draft, i, mean_length, settings.bm25.k1, settings.bm25.b)
            for i in range(settings.shards)
            if shard_file(i, PARTS[-1]) not in there
        ]
        for rows in run_tasks("index", _score, score_calls, settings.concurrency):
            progress.add(rows)
    draft.commit("passage_ids.arrow", store.write_ids, len(store))
    summary = {"kind": "bm25", "shards": ranges, "corpus": store.fingerprint, "model": None, "dimension": None}
    summary["expand"] = generated.origin if generated else None
    return draft.finish(len(store), **summary, factory=None, stemmer=settings.bm25.stemmer, stopwords=settings.bm25.stopwords)


@dataclass(frozen=True)
class _Inputs:
    """What the driver and each task open: the corpus and the queries that expand it, with the fingerprints that the stage began with."""

    corpus: str
    expand: str | None
    prints: dict[str, str]

    def open(self) -> tuple[PassageStore, Generated | None]:
        """InputError if one of them was replaced since."""
        store = store_of(self.corpus, self.prints["corpus"])
        return store, Generated(self.expand, store, self.prints["expand"]) if self.expand else None


def _counts_name(shard: int) -> str:
    return f"counts-{shard:05d}.npz"


def _counts(draft: Draft, shard: int) -> Any:
    path = draft.kept(_counts_name(shard))
    if path is None:
        raise FileNotFoundError(_counts_name(shard))
    return np.load(path)


def _count(draft: Draft, inputs: _Inputs, words: Words, shard: int, start: int, stop: int) -> int:
    """Pass 1: each passage's length, and its words (numbered in the shard's own vocabulary) with their counts."""
    store, generated = inputs.open()
    tokenizer = words.tokenizer()
    lengths, passages, ids, counts = [], [], [], []
    for at in range(start, stop, _BLOCK_ROWS):
        end = min(at + _BLOCK_ROWS, stop)
        read = full_text(store.slice(at, end, ["title", "text"])).combine_chunks()
        if generated is not None:
            read = pc.binary_join_element_wise(read, pc.binary_join(generated.slice(at, end), " "), " ")
        texts = read.to_pylist()
        flat, length = words.split(texts, tokenizer)
        owner = np.repeat(np.arange(len(length), dtype=np.int64), length)
        pair, count = np.unique(owner << 32 | flat, return_counts=True)
        lengths.append(length)
        passages.append((pair >> 32) + (at - start))
        ids.append(pair & 0xFFFFFFFF)
        counts.append(count)
    arrays: dict[str, Any] = {
        "length": np.concatenate(lengths).astype(np.int32),
        "passage": np.concatenate(passages).astype(np.int32),
        "word": np.concatenate(ids).astype(np.int32),
        "count": np.concatenate(counts).astype(np.int32),
        "vocabulary": np.frombuffer("\n".join(_names(tokenizer.get_vocab_dict())).encode(), dtype=np.uint8),
    }
    draft.keep(_counts_name(shard), lambda path: np.savez(path, **arrays))
    return stop - start


def _names(vocabulary: dict[str, int]) -> list[str]:
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _shard_words(counts: Any) -> pa.Array:
    text = counts["vocabulary"].tobytes().decode()
    return pa.array(text.split("\n") if text else [], pa.string())


def _global_statistics(draft: Draft, shards: int, rows: int) -> float:
    """Commit the vocabulary of all shards, sorted, with the idf of each word; returns the mean length of a passage."""
    parts, tokens = [], 0
    for shard in range(shards):
        with _counts(draft, shard) as counts:
            names = _shard_words(counts)
            parts.append(pa.table({"word": names, "df": np.bincount(counts["word"], minlength=len(names))}))
            tokens += int(counts["length"].sum(dtype=np.int64))
    merged = pa.concat_tables(parts).group_by("word").aggregate([("df", "sum")]).sort_by("word")
    df, where = np.unique(merged["df_sum"].to_numpy(), return_inverse=True)
    idf = np.array([math.log(1 + (rows - n + 0.5) / (n + 0.5)) for n in df.tolist()], dtype=np.float32)[where]
    table = pa.table({"word": merged["word"], "idf": pa.array(idf, pa.float32())})
    draft.commit(VOCABULARY, lambda path: write_arrow(path, table), table.num_rows)
    return tokens / rows


def _score(draft: Draft, shard: int, mean_length: float, k1: float, b: float) -> int:
    """Pass 2: a shard's scores, word after word in the order of the vocabulary, each word's passages rising."""
    vocabulary = pa.ipc.open_file(pa.memory_map(str(draft.read(VOCABULARY)))).read_all()
    with _counts(draft, shard) as counts:
        to_global = pc.index_in(_shard_words(counts), value_set=vocabulary["word"].combine_chunks()).to_numpy()
        word, passage, length = to_global[counts["word"]], counts["passage"], counts["length"]
        tf = counts["count"].astype(np.float64)
    idf = vocabulary["idf"].to_numpy()
    scores = _bm25(tf, length[passage], idf[word], mean_length, k1, b)
    order = np.argsort(word, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(word, minlength=len(idf)))]).astype(np.int64)
    for part, array in zip(PARTS, (scores[order], passage[order], starts), strict=True):
        draft.commit(shard_file(shard, part), partial(_save, array), len(length))
    return len(length)


def _bm25(
    tf: NDArray[np.float64], length: NDArray[np.int32], idf: NDArray[np.float32], mean_length: float, k1: float, b: float
) -> NDArray[np.float32]:
    """The scores in float64, operation by operation as bm25s does them, then float32 as it stores them."""
    return (idf * (tf / (k1 * ((1 - b) + b * length / mean_length) + tf))).astype(np.float32)


def _save(array: NDArray[Any], path: Path) -> None:
    np.save(path, array)
