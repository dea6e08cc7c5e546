"""The choice of nprobe: the least that reaches the recall, by the lists that hold the answers and by what the index finds."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from embeddings import write_embeddings
from hypothesis import given
from hypothesis import strategies as st

from raydense.retrieval.nprobe import Sample, Shard, covered, exact_hits, least_nprobe, others, share_found
from raydense.retrieval.search_params import with_defaults

ROWS, DIMENSION = 600, 16


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=40), st.floats(0, 0.2), st.floats(0.5, 1))
def test_it_is_the_least_that_reaches_the_recall(steps: list[float], lost: float, wanted: float) -> None:
    """Any rising share of answers in the lists, of which the codes lose a constant part: searched for by trying all."""
    held = np.minimum(np.cumsum(steps) / max(sum(steps), 1e-9), 1) if sum(steps) else np.ones(len(steps))
    held[-1] = 1
    tried: list[int] = []

    def recall(nprobe: int) -> float:
        tried.append(nprobe)
        return float(held[nprobe - 1]) - lost

    reaching = [p for p in range(1, len(held) + 1) if held[p - 1] - lost >= wanted]
    holding = min(p for p in range(1, len(held) + 1) if held[p - 1] >= wanted)
    assert least_nprobe(recall, held, wanted) == (min(reaching) if reaching else holding)
    if not lost:
        assert set(tried) == {holding}, "where no code loses an answer, one search confirms it"
    assert len(set(tried)) <= 6, "what the codes lose at one nprobe says where the next is"


@pytest.mark.parametrize("factory", ["IVF12,Flat", "PCA8,IVF12,Flat", "IVF12,SQ8,Refine(Flat)", "IVF12_HNSW8,Flat"])
def test_lists_hold_what_a_search_of_so_many_finds(factory: str, tmp_path: Path) -> None:
    """Exact answers against a plain reading; the share in the first lists against a search whose codes lose nothing."""
    vectors = np.random.default_rng(3).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    made = write_embeddings(tmp_path / "v", vectors)
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    sample = Sample(np.arange(0, ROWS, 20), vectors[::20], 15)
    shards = [Shard("", at, at + 200) for at in range(0, ROWS, 200)]
    answers = others([exact_hits(str(tmp_path / "v"), made.fingerprint, sample, shard) for shard in shards], sample)
    scores = vectors[sample.rows].astype(np.float64) @ vectors.T
    scores[np.arange(len(scores)), sample.rows] = -np.inf
    np.testing.assert_array_equal(answers, np.argsort(-scores, axis=1)[:, :15])
    held = covered(index, vectors[sample.rows], answers, lambda rows: vectors[rows])
    assert held[-1] == 1
    assert (np.diff(held) >= 0).all()
    for nprobe in (1, 4, 12):
        faiss.ParameterSpace().set_index_parameters(index, with_defaults(f"nprobe={nprobe}", factory))
        found = share_found(others([index.search(vectors[sample.rows], 16)], sample), answers)
        if factory == "IVF12,Flat":
            assert found == pytest.approx(held[nprobe - 1])
        assert found <= held[nprobe - 1] + 1e-9 or "HNSW" in factory


def test_a_passage_is_no_answer_to_itself() -> None:
    """Own row first, among ties, or not there at all: then the last is left out, so that each query has k others."""
    sample = Sample(np.array([4, 7, 9]), np.empty((3, 0), np.float32), 3)
    rows = np.array([[4, 1, 2, 3], [5, 6, 7, 8], [1, 2, 3, 5]])
    scores = np.array([[9, 3, 2, 1], [4, 3, 2, 1], [4, 3, 2, 1]], np.float32)
    assert others([(scores, rows)], sample).tolist() == [[1, 2, 3], [5, 6, 8], [1, 2, 3]]


def test_given_search_params_win() -> None:
    assert with_defaults("", "IVF4,Flat", nprobe=3) == "nprobe=3"
    assert with_defaults("nprobe=9", "IVF4,Flat", nprobe=3) == "nprobe=9"
    assert with_defaults("", "RaBitQ,Refine(SQ8)") == "k_factor_rf=10"
    assert with_defaults("k_factor_rf=4", "IVF4,RaBitQ,Refine(SQ8)", nprobe=3) == "nprobe=3,k_factor_rf=4"
    assert with_defaults(" nprobe = 9", "IVF4,PQ8,RFlat", nprobe=3) == "k_factor_rf=10, nprobe = 9"
    assert with_defaults("", "Flat") == ""
