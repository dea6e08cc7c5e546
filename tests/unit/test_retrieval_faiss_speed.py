"""What makes FAISS fast does not change what it finds: blocks of decoded vectors, the threshold of BLAS."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from raydense.retrieval import faiss_speed
from raydense.retrieval.faiss_shard import FaissShard
from raydense.retrieval.faiss_speed import BlockScan, prefer_blas

ROWS, DIMENSION = 700, 24


def quantised(factory: str) -> faiss.Index:
    vectors = np.random.default_rng(1).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    return index


def queries_of(n: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((n, DIMENSION)).astype(np.float32)


@pytest.mark.parametrize("factory", ["SQfp16", "SQ8", "SQbf16", "SQ4"])
@pytest.mark.parametrize("k", [1, 50, 101, ROWS])
def test_a_scan_by_blocks_finds_what_faiss_finds(factory: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 100 rows, so that k is less and more than a block holds."""
    monkeypatch.setattr(faiss_speed, "BLOCK_BYTES", 4 * DIMENSION * 100)
    index, queries = quantised(factory), queries_of(30)
    scores, rows = BlockScan(faiss, index, 1).search(queries, k)
    true = queries.astype(np.float64) @ index.reconstruct_n(0, ROWS).T.astype(np.float64)
    np.testing.assert_allclose(scores, -np.sort(-true, axis=1)[:, :k], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scores, np.take_along_axis(true, rows, axis=1), rtol=1e-4, atol=1e-4)
    assert all(len(set(line)) == k for line in rows.tolist())
    np.testing.assert_allclose(scores, index.search(queries, k)[0], rtol=1e-3, atol=1e-3)


def test_blocks_are_for_as_many_queries_as_fill_the_threads() -> None:
    index = quantised("SQfp16")
    assert [BlockScan(faiss, index, 1).is_faster(n) for n in (1, 19, 20, 1_024)] == [False, False, True, True]
    assert [BlockScan(faiss, index, 8).is_faster(n) for n in (16, 17)] == [False, True]
    assert BlockScan(faiss, index, 32).is_faster(1), "FAISS would use one of the 32 threads"


def test_a_shard_scans_by_blocks_where_that_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faiss.write_index(quantised("SQfp16"), str(tmp_path / "shard-00000.faiss"))
    faiss.write_index(faiss.index_factory(DIMENSION, "SQfp16", faiss.METRIC_INNER_PRODUCT), str(tmp_path / "empty.faiss"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shard = FaissShard(str(tmp_path / "shard-00000.faiss"), 5, threads=1)
    scanned: list[int] = []
    search = BlockScan.search
    monkeypatch.setattr(BlockScan, "search", lambda self, queries, k: scanned.append(len(queries)) or search(self, queries, k))
    alone, together = shard.nearest(queries_of(40)[:3], 9, True), shard.nearest(queries_of(40), 9, True)
    assert scanned == [40]
    for few, many in zip(alone, together, strict=True):
        np.testing.assert_array_equal(few, many[:3])
    assert (together[1] >= 5).all()


def test_blas_is_preferred_from_three_queries_in_the_measure_of_this_faiss() -> None:
    before = faiss.cvar.distance_compute_blas_threshold
    for default, set_to in ((128_000, 3 * 768), (20, 3)):
        faiss.cvar.distance_compute_blas_threshold = default
        prefer_blas(faiss, 768)
        assert faiss.cvar.distance_compute_blas_threshold == set_to
    faiss.cvar.distance_compute_blas_threshold = before
