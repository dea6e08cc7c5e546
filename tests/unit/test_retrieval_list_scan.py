"""A search list by list finds what FAISS finds query by query, for any number of threads, hits and lists."""

from typing import Any

import faiss
import numpy as np
import pytest

from raydense.retrieval import list_scan
from raydense.retrieval.faiss_speed import blas_preferred
from raydense.retrieval.list_scan import ListScan, search_of

ROWS, DIMENSION, LISTS, QUERIES = 1_500, 16, 12, 40


@pytest.fixture(scope="module", params=["IVF12,Flat", "IVF12,SQfp16", "IVF12,SQ8", "IVF12_HNSW8,SQ8"])
def index(request: pytest.FixtureRequest) -> Any:
    random = np.random.default_rng(1)
    vectors = (random.standard_normal((LISTS, DIMENSION))[random.integers(LISTS, size=ROWS)]).astype(np.float32)
    vectors += 0.4 * random.standard_normal(vectors.shape).astype(np.float32)
    made = faiss.index_factory(DIMENSION, request.param, faiss.METRIC_INNER_PRODUCT)
    made.train(vectors)
    made.add(vectors)
    return made


def queries() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((QUERIES, DIMENSION)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [64, 2**14])
@pytest.mark.parametrize(("nprobe", "k"), [(1, 10), (1, 400), (5, 100), (LISTS, 30), (LISTS, ROWS)])
def test_its_hits_are_those_of_faiss(index: Any, nprobe: int, k: int, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_scan, "_QUERIES_A_LIST", 0)
    monkeypatch.setattr(list_scan, "_ROWS", rows)
    index.nprobe = nprobe
    scores, found = ListScan(index, threads).search(queries(), k)
    wanted, right = index.search(queries(), k)
    wanted[right < 0] = -np.inf
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5)
    near = np.isclose(wanted[:, 1:], wanted[:, :-1], rtol=1e-5, atol=1e-5)
    alone = ~(np.pad(near, ((0, 0), (1, 0))) | np.pad(near, ((0, 0), (0, 1)))) | (right < 0)
    np.testing.assert_array_equal(found[alone], right[alone])
    assert all(len(set(line[line >= 0].tolist())) == (line >= 0).sum() for line in found)


@pytest.mark.parametrize("queries_a_list", [0, 10**6])
@pytest.mark.parametrize(("nprobe", "k", "count"), [(5, 100, 512), (5, 100, 20), (LISTS, 30, 100), (2, 400, 70), (1, 100, 3)])
def test_threads_change_no_byte(index: Any, nprobe: int, k: int, count: int, queries_a_list: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """List by list and query by query: the number of threads follows from the machine."""
    monkeypatch.setattr(list_scan, "_QUERIES_A_LIST", queries_a_list)
    asked = np.random.default_rng(3).standard_normal((count, DIMENSION)).astype(np.float32)
    index.nprobe = nprobe
    with blas_preferred(DIMENSION):
        found = [ListScan(index, threads).search(asked, k) for threads in (1, 2, 5)]
    for scores, rows in found[1:]:
        assert scores.tobytes() == found[0][0].tobytes()
        assert rows.tobytes() == found[0][1].tobytes()


@pytest.mark.parametrize("factory", ["PCA8,IVF12,SQ8", "RR16,IVF12,RaBitQ", "IVF12,PQ4x4", "IVF12,RaBitQ", "RR16,HNSW8", "PCA8,Flat"])
@pytest.mark.parametrize("count", [1, 20, 600])
def test_threads_change_no_byte_behind_a_transformation_and_of_other_codes(
    factory: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_scan, "_ROWS", 300)
    random = np.random.default_rng(5)
    vectors, asked = (random.standard_normal((rows, DIMENSION)).astype(np.float32) for rows in (ROWS, count))
    made = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    made.train(vectors)
    made.add(vectors)
    faiss.ParameterSpace().set_index_parameters(made, "nprobe=5" if "IVF" in factory else "")
    with blas_preferred(DIMENSION):
        found = [search_of(made, threads).search(asked, 30) for threads in (1, 2, 5)]
        wanted, right = made.search(asked, 30)
    for scores, rows in found:
        assert (scores.tobytes(), rows.tobytes()) == (found[0][0].tobytes(), found[0][1].tobytes())
    np.testing.assert_allclose(found[0][0], wanted, rtol=1e-5, atol=1e-4)
    assert np.mean(found[0][1] == right) > 0.99


def test_equal_vectors_are_hits_in_the_order_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_scan, "_QUERIES_A_LIST", 0)
    vectors = np.random.default_rng(4).integers(-1, 2, (400, 4)).astype(np.float32)
    made = faiss.index_factory(4, "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    made.train(vectors)
    made.add(vectors)
    made.nprobe = 4
    exact = vectors[:50] @ vectors.T
    wanted = np.lexsort((np.broadcast_to(np.arange(400), exact.shape), -exact), axis=-1)[:, :300]
    for threads in (1, 3):
        scores, rows = ListScan(made, threads).search(vectors[:50], 300)
        np.testing.assert_array_equal(scores, np.take_along_axis(exact, wanted, axis=1))
        assert (np.diff(rows)[np.diff(scores) == 0] > 0).all()


def test_a_large_k_takes_little_memory(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries are searched in parts, which find the same."""
    monkeypatch.setattr(list_scan, "_QUERIES_A_LIST", 0)
    index.nprobe, searched = 5, ListScan(index, 2)
    scores, rows = searched.search(queries(), 300)
    monkeypatch.setattr(list_scan, "_HITS_BYTES", 7 * 20 * 1_100)
    parts, search = [], searched._search
    monkeypatch.setattr(searched, "_search", lambda asked, *given: parts.append(len(asked)) or search(asked, *given))
    cut_scores, cut_rows = searched.search(queries(), 300)
    assert sum(parts) == QUERIES
    assert max(parts) <= 7
    np.testing.assert_allclose(cut_scores, scores, rtol=1e-5, atol=1e-5)
    assert np.mean(cut_rows == rows) > 0.99


def test_a_refined_search_takes_its_queries_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(6).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    made = faiss.index_factory(DIMENSION, "RaBitQ,Refine(SQ8)", faiss.METRIC_INNER_PRODUCT)
    made.train(vectors)
    made.add(vectors)
    faiss.ParameterSpace().set_index_parameters(made, "k_factor_rf=10")
    wanted, right = made.search(vectors[:200], 20)
    monkeypatch.setattr(list_scan, "_HITS_BYTES", 20 * 20 * 10 * 70)
    scores, rows = search_of(made, 2).search(vectors[:200], 20)
    np.testing.assert_array_equal(rows, right)
    np.testing.assert_array_equal(scores, wanted)


def test_faiss_searches_for_few_queries_and_other_indexes(index: Any) -> None:
    index.nprobe = 3
    scores, found = search_of(index, 2).search(queries()[:2], 7)
    wanted, right = index.search(queries()[:2], 7)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(scores, wanted)
    other = faiss.IndexFlatIP(DIMENSION)
    assert search_of(other, 2) is other
