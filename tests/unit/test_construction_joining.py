"""Paragraphs that become passages, against the paper's rules said in another way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.construction.joining import joined


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(0, 300))
def test_each_passage_is_as_short_as_the_length_allows(lengths, length):
    found = joined(lengths, length)
    assert [n for start, stop in found for n in range(start, stop)] == list(range(len(lengths))), "every paragraph once, in order"
    for start, stop in found[:-1]:
        assert sum(lengths[start:stop]) > length >= sum(lengths[start : stop - 1])
    for start, stop in found[-1:]:
        assert sum(lengths[start : stop - 1]) <= length


@pytest.mark.parametrize(
    ("lengths", "passages"),
    [([], []), ([100], [(0, 1)]), ([300, 10], [(0, 1), (1, 2)]), ([100, 156, 1, 256, 2], [(0, 3), (3, 5)])],
)
def test_a_short_document_is_one_passage_and_a_rest_is_one_too(lengths, passages):
    assert joined(lengths, 256) == passages
