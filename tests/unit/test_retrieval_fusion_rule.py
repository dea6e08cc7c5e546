"""The hits of several pools, fused: no wider than there are hits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from raydense.retrieval.fusion_rule import Fusion


@pytest.mark.parametrize("k", [1, 3, 5, 10**9])
def test_hits_beyond_those_there_are_take_no_room(k: int) -> None:
    pools = [
        (np.array([[3.0, 2.0, 1.0], [3.0, 2.0, -np.inf]], np.float32), np.array([[4, 2, 7], [1, 0, -1]])),
        (np.array([[9.0, 8.0], [9.0, 8.0]], np.float32), np.array([[2, 5], [0, 3]])),
    ]
    scores, rows = Fusion.reciprocal(2).fused(pools, lambda some: pa.array([f"p{row}" for row in some]), k)
    first = 1 / 61 + 1 / 62
    expected = [[2, 4, 5, 7, -1], [0, 1, 3, -1, -1]]
    assert rows.tolist() == [line[:k] for line in expected]
    np.testing.assert_allclose(scores[:, 0], first, rtol=1e-6)
    assert (np.isneginf(scores) == (rows < 0)).all()
