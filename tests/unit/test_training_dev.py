"""Dev metrics against a public tool's, and what a small dev set holds."""

import ir_measures
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydense.training.dev import of_queries, retriever_set


def test_dev_metrics_equal_those_of_ir_measures() -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(40, 130)).astype(np.float32)
    relevant = rng.random((40, 130)) < 0.05
    qrels = [ir_measures.Qrel(str(q), str(p), int(relevant[q, p])) for q in range(40) for p in range(130)]
    run = [ir_measures.ScoredDoc(str(q), str(p), float(scores[q, p])) for q in range(40) for p in range(130)]
    measures = [ir_measures.RR @ 10, ir_measures.nDCG @ 10, ir_measures.R @ 100]
    expected = ir_measures.calc_aggregate(measures, qrels, run)
    found = of_queries(torch.from_numpy(scores), torch.from_numpy(relevant)).mean(dim=1)
    assert found.tolist() == pytest.approx([expected[measure] for measure in measures])


def test_ties_go_to_the_earlier_and_absent_ones_count_nothing() -> None:
    scores = torch.tensor([[1, 1, 0], [0, 0, 2], [-np.inf, 3, 1]])
    relevant = torch.tensor([[False, True, False], [False, False, True], [False, False, False]])
    assert of_queries(scores, relevant)[0].tolist() == [1 / 2, 1, 0]
    scores[1, 0] = np.nan
    assert of_queries(scores, relevant).isnan().any(dim=0).tolist() == [False, True, False]


@given(st.integers(1, 60), st.integers(10, 80), st.integers(0, 2**31))
def test_a_dev_set_always_has_hard_and_random_passages(queries: int, most: int, seed: int) -> None:
    """Whatever the number of dev queries: their positives take at most half, a run's first hits at most three quarters of the rest."""
    rng, corpus = np.random.default_rng(seed), 400
    at, rows = np.repeat(np.arange(queries), 2), rng.integers(100, size=2 * queries)
    run = np.repeat(np.arange(queries), 5), np.tile(np.arange(5), queries), 100 + rng.integers(100, size=5 * queries)
    dev = retriever_set(at, rows, run, most, corpus, np.random.default_rng(seed))
    kept, positives = set(dev.rows.tolist()), set(rows[np.isin(at, dev.query)].tolist())
    assert positives <= kept
    assert len(kept) == most == len(dev.rows)
    assert len(positives) <= max(most // 2, 2)
    of_run = kept & set(run[2][np.isin(run[0], dev.query)].tolist())
    assert of_run
    assert len(kept - positives - of_run) >= 1
    assert {(q, dev.rows[p]) for q, p in zip(dev.query[np.nonzero(dev.relevant)[0]], np.nonzero(dev.relevant)[1], strict=True)} == {
        (q, r) for q, r in zip(at, rows, strict=True) if q in dev.query
    }
    if len(set(rows.tolist())) <= most // 2:
        assert len(dev.query) == queries
