"""A search list by list finds what FAISS finds query by query, for any number of threads, hits and lists."""

from typing import Any

import faiss
import numpy as np
import pytest

from raydense.retrieval import list_scan
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
    scores, found = ListScan(faiss, index, threads).search(queries(), k)
    wanted, right = index.search(queries(), k)
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5)
    near = np.isclose(wanted[:, 1:], wanted[:, :-1], rtol=1e-5, atol=1e-5)
    alone = ~(np.pad(near, ((0, 0), (1, 0))) | np.pad(near, ((0, 0), (0, 1)))) | (right < 0)
    np.testing.assert_array_equal(found[alone], right[alone])
    assert all(len(set(line[line >= 0].tolist())) == (line >= 0).sum() for line in found)


def test_faiss_searches_for_few_queries_and_other_indexes(index: Any) -> None:
    index.nprobe = 3
    scores, found = search_of(faiss, index, 2).search(queries()[:2], 7)
    wanted, right = index.search(queries()[:2], 7)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(scores, wanted)
    other = faiss.IndexFlatIP(DIMENSION)
    assert search_of(faiss, other, 2) is other
