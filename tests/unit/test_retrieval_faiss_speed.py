"""What makes FAISS fast does not change what it finds: threads, blocks of decoded vectors, the threshold of BLAS."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import faiss
import numpy as np
import pytest

from raydense.errors import InputError
from raydense.retrieval import faiss_library, faiss_speed
from raydense.retrieval.faiss_shard import FaissShard
from raydense.retrieval.faiss_speed import Scan, blas_preferred, prefer_blas

ROWS, DIMENSION = 700, 24


def quantised(factory: str) -> faiss.Index:
    vectors = np.random.default_rng(1).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    return index


def queries_of(n: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((n, DIMENSION)).astype(np.float32)


def assert_found(index: faiss.Index, queries: np.ndarray, k: int, scores: np.ndarray, rows: np.ndarray) -> None:
    true = queries.astype(np.float64) @ index.reconstruct_n(0, index.ntotal).T.astype(np.float64)
    np.testing.assert_allclose(scores, -np.sort(-true, axis=1)[:, :k], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scores, np.take_along_axis(true, rows, axis=1), rtol=1e-4, atol=1e-4)
    assert all(len(set(line)) == k for line in rows.tolist())
    np.testing.assert_allclose(scores, index.search(queries, k)[0], rtol=1e-3, atol=1e-3)


def test_an_index_of_distances_is_not_searched(tmp_path: Path) -> None:
    """Of these FAISS gives the nearest with the least score, and hits are ordered by falling scores."""
    faiss.write_index(quantised("HNSW8_PQ4x4"), str(tmp_path / "shard.faiss"))
    with pytest.raises(InputError, match=r"shard.faiss: has L2 distances in place of inner products.*index again by another factory"):
        FaissShard(str(tmp_path / "shard.faiss"), 0, 1, empty=str(tmp_path / "shard.faiss"))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 100 rows if one thread decodes, so that k is less and more than a block holds; no work is too little for a thread."""
    monkeypatch.setattr(faiss_speed, "BLOCK_BYTES", 4 * DIMENSION * 100)
    monkeypatch.setattr(faiss_speed, "_LEAST_WORK", 1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("factory", ["Flat", "SQfp16", "SQ8", "SQbf16", "SQ4"])
@pytest.mark.parametrize("k", [1, 50, 101, ROWS])
@pytest.mark.parametrize(("n", "threads"), [(1, 1), (1, 3), (30, 1), (30, 2), (70, 5), (70, 8)])
def test_a_scan_finds_what_faiss_finds(factory: str, k: int, n: int, threads: int) -> None:
    index, queries = quantised(factory), queries_of(n)
    assert_found(index, queries, k, *Scan(index, threads).search(queries, k))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [40, 100])
def test_a_block_with_more_of_the_best_than_its_share_is_asked_for_all_of_them(k: int) -> None:
    """The best of the first queries are all in the last block, those of the others everywhere."""
    queries = queries_of(30)
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((ROWS, DIMENSION)).astype(np.float32)
    vectors[600:] += 9 * queries[0]
    index = faiss.index_factory(DIMENSION, "SQfp16", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    assert (index.search(queries[:1], k)[1] >= 600).all()
    assert_found(index, queries, k, *Scan(index, 1).search(queries, k))


def test_vectors_are_decoded_once_for_all_queries_where_that_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faiss.write_index(quantised("SQfp16"), str(tmp_path / "shard-00000.faiss"))
    faiss.write_index(faiss.index_factory(DIMENSION, "SQfp16", faiss.METRIC_INNER_PRODUCT), str(tmp_path / "empty.faiss"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    left = faiss.cvar.distance_compute_min_k_reservoir, faiss.cvar.distance_compute_blas_threshold
    shard = FaissShard(str(tmp_path / "shard-00000.faiss"), 5, threads=1)
    scanned: list[int] = []
    decoded = Scan._decoded
    monkeypatch.setattr(Scan, "_decoded", lambda self, queries, *rest: scanned.append(len(queries)) or decoded(self, queries, *rest))
    alone, together = shard.nearest(queries_of(40)[:3], 9, True), shard.nearest(queries_of(40), 9, True)
    assert scanned == [40]
    for few, many in zip(alone, together, strict=True):
        np.testing.assert_array_equal(few, many[:3])
    assert (together[1] >= 5).all()
    assert "OMP_NUM_THREADS" not in os.environ, "what a process starts later has its own"
    assert left == (faiss.cvar.distance_compute_min_k_reservoir, faiss.cvar.distance_compute_blas_threshold)


def test_the_last_of_several_searches_restores_the_settings_of_faiss() -> None:
    left = faiss.cvar.distance_compute_blas_threshold
    first, second = blas_preferred(24), blas_preferred(24)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert faiss.cvar.distance_compute_blas_threshold != left
    second.__exit__(None, None, None)
    assert faiss.cvar.distance_compute_blas_threshold == left


@pytest.mark.parametrize("factory", ["Flat", "SQ8"])
def test_several_callers_share_the_threads_of_a_scan(factory: str, small_blocks: None) -> None:
    index, queries = quantised(factory), queries_of(64)
    scan = Scan(index, 4)
    expected = [scan.search(queries[at : at + 16], 30) for at in range(0, 64, 16)]
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda at: scan.search(queries[at : at + 16], 30), range(0, 64, 16)))
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_array_equal(here[1], there[1])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [1, 30])
def test_a_caller_does_what_other_threads_do_not_begin(n: int) -> None:
    index, queries = quantised("SQ8"), queries_of(n)
    scan, go_on = Scan(index, 2), Event()
    busy = [scan._pool.submit(go_on.wait, 60) for _ in range(2)]
    assert_found(index, queries, 50, *scan.search(queries, 50))
    assert not any(one.done() for one in busy)
    go_on.set()


@pytest.mark.parametrize("dimension", [24, 333, 768])
@pytest.mark.parametrize("of_numbers", [True, False])
def test_blas_is_preferred_from_three_queries_in_the_measure_of_this_faiss(
    dimension: int, of_numbers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every shard that a process opens."""
    assert faiss_library.COUNTS_NUMBERS, "the FAISS that is tested"
    monkeypatch.setattr(faiss_speed, "COUNTS_NUMBERS", of_numbers)
    before = faiss.cvar.distance_compute_blas_threshold
    for _ in range(2):
        prefer_blas(dimension)
        assert faiss.cvar.distance_compute_blas_threshold == (3 * dimension if of_numbers else 3)
    faiss.cvar.distance_compute_blas_threshold = before
