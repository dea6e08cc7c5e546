"""Positions of ranges against a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raydense.ranges import ranges


@given(st.lists(st.tuples(st.integers(-5, 2**40), st.integers(0, 6)), max_size=20))
def test_they_are_those_of_a_loop(pairs: list[tuple[int, int]]) -> None:
    starts, counts = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
    assert ranges(starts, counts).tolist() == [start + n for start, count in pairs for n in range(count)]
    assert ranges(starts, counts.astype(np.int32)).dtype == np.int64
