"""The order of a re-ranked list against sorting by Python: scored hits first, the rest below in the order that it had, sorted by score."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raydense.inference.reordering import reordered

HITS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.one_of(st.none(), st.integers(-5, 5))), max_size=60)


@given(HITS)
def test_as_sorted_by_python(hits: list[tuple[int, int, int | None]]) -> None:
    query, row = (np.array([hit[i] for hit in hits], np.int64) for i in (0, 1))
    score = np.array([np.nan if hit[2] is None else hit[2] for hit in hits], np.float32)
    order, scores = reordered(query, row, score)
    groups: dict[int, tuple[list[tuple[int, int, int]], list[int]]] = defaultdict(lambda: ([], []))
    for at, (owner, passage, given_) in enumerate(hits):
        groups[owner][1].append(at) if given_ is None else groups[owner][0].append((-given_, passage, at))
    wanted, values = [], []
    for owner in sorted(groups):
        scored, rest = groups[owner]
        scored.sort()
        wanted += [at for *_, at in scored] + rest
        least = -scored[-1][0] if scored else 0
        values += [-minus for minus, *_ in scored] + [least - (place + 1) / len(rest) for place in range(len(rest))]
    assert order.tolist() == wanted
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, values, rtol=0, atol=1e-6)
    assert all(scores[at] >= scores[at + 1] for at in range(len(hits) - 1) if query[order[at]] == query[order[at + 1]])


def test_a_long_rest_is_strictly_below_and_falls_strictly() -> None:
    n = 20_000
    order, scores = reordered(np.zeros(n + 1, np.int64), np.arange(n + 1), np.append(-9.5, np.full(n, np.nan)).astype(np.float32))
    assert order.tolist() == list(range(n + 1))
    assert (np.diff(scores) < 0).all()
    assert scores[-1] == -10.5
