"""A BM25 shard's hits are those of the dense sums, to the last bit and with all ties, whatever the blocks and the threads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydense.retrieval import bm25_shard
from raydense.retrieval.bm25_shard import PARTS, Bm25Shard


def shard_of(folder: Path, scores: np.ndarray, threads: int) -> Bm25Shard:
    """The shard of dense scores [words, passages], 0 where a passage does not have the word."""
    word, passage = np.nonzero(scores)
    starts = np.concatenate([[0], np.cumsum(np.bincount(word, minlength=len(scores)))])
    arrays = {"scores": scores[word, passage], "passages": passage.astype(np.int32), "starts": starts.astype(np.int64)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return Bm25Shard([folder / f"{part}.npy" for part in PARTS], 1_000, 1_000 + scores.shape[1], threads)


def dense(scores: np.ndarray, words: list[int], k: int) -> tuple[np.ndarray, np.ndarray]:
    sums = np.zeros(scores.shape[1], np.float32)
    for word in words:
        sums += scores[word]
    order = np.lexsort((np.arange(len(sums)), -sums))[:k]
    return np.where(sums[order] > 0, sums[order], -np.inf), np.where(sums[order] > 0, order + 1_000, -1)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 120), st.sampled_from([1, 3, 50, 1_000]), st.sampled_from([1, 3]))
def test_hits_are_those_of_the_dense_sums(seed: int, rows: int, block: int, k: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice(np.array([0.1, 0.7, 1 / 3, 2.3], np.float32), (8, rows))  # few, so that ties are everywhere
    scores = np.where(rng.random((8, rows)) < rng.random((8, 1)) ** 2, values, np.float32(0))
    asked = [rng.integers(0, 8, rng.integers(0, 6)).tolist() for _ in range(40)]
    words = np.array([word for query in asked for word in query], np.int32)
    starts = np.concatenate([[0], np.cumsum([len(query) for query in asked])]).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25_shard, "_BLOCK", block)
        found, found_rows = shard_of(Path(folder), scores, threads).nearest(words, starts, k)
    for query, mine, mine_rows in zip(asked, found, found_rows, strict=True):
        expected, expected_rows = dense(scores, query, min(k, rows))
        np.testing.assert_array_equal(mine, expected)
        np.testing.assert_array_equal(mine_rows, expected_rows)
