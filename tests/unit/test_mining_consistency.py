"""The arithmetic of `filter` against a plain reading: the place of the own passage among the hits, and the lists that are left."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from raydense.mining.consistency import SAMPLE, FileQueries, _drawn, places

TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=9)
LISTS = st.lists(st.lists(st.tuples(st.sampled_from(["", "a", "bc"]), st.booleans()), max_size=4), max_size=7)


def array(lists: list[list[str]]) -> pa.ListArray:
    return pa.array(lists, pa.list_(pa.string()))


@given(texts=TEXTS, data=st.data(), k=st.integers(1, 6))
def test_the_place_is_that_of_the_first_hit_with_the_own_text(texts: list[int], data: st.DataObject, k: int) -> None:
    row = st.integers(0, len(texts) - 1)
    queries = data.draw(st.lists(st.tuples(row, st.lists(row, unique=True, max_size=k)), max_size=6))
    hits = np.array([[*found, *[-1] * (k - len(found))] for _, found in queries], dtype=np.int64).reshape(-1, k)
    own = np.array([passage for passage, _ in queries], dtype=np.int64)
    slow = [next((rank for rank, hit in enumerate(found, 1) if texts[hit] == texts[passage]), 0) for passage, found in queries]
    assert places(hits, own, np.array(texts, dtype=np.uint64)).tolist() == slow


def test_no_hit_is_not_the_last_passage() -> None:
    """A row of -1, taken as an index, would be the last one."""
    assert places(np.array([[-1, -1]]), np.array([2]), np.arange(3, dtype=np.uint64)).tolist() == [0]


@given(marked=LISTS, before=LISTS, start=st.integers(0, 10**9))
def test_lists_keep_their_order_and_lose_what_is_not_marked(
    marked: list[list[tuple[str, bool]]], before: list[list[tuple[str, bool]]], start: int
) -> None:
    """Also of a list array that is a piece of a longer one."""
    whole = array([[text for text, _ in line] for line in [*before, *marked]])
    asked = FileQueries(whole.slice(len(before)), start)
    flat = [text for line in marked for text, _ in line]
    assert asked.texts(0) == flat
    assert asked.own.tolist() == [start + i for i, line in enumerate(marked) for _ in line]
    kept = asked.kept(np.array([mark for line in marked for _, mark in line], dtype=bool))
    assert kept.to_pylist() == [[text for text, mark in line if mark] for line in marked]


def test_the_sample_is_drawn_of_kept_and_of_dropped_whatever_the_file() -> None:
    """The random numbers of a file's second half are those that it has in the whole file."""
    lists = array([[f"{row} {place}" for place in range(row % 4)] for row in range(60)])
    whole, half = FileQueries(lists, 0), FileQueries(lists.slice(30), 30)
    place = np.where(whole.own % 3 == 0, 0, 1 + np.arange(len(whole.own)) % 5)
    first = 59 - whole.own

    def drawn(asked: FileQueries, seed: int = 1) -> dict[str, dict[str, object]]:
        these = whole.own >= asked.start
        return {line["query"]: line for line in _drawn(seed, asked, place[these], first[these]).to_pylist()}

    sample, of_half = drawn(whole), drawn(half)
    dropped = [line for line in sample.values() if line["place"] == 0]
    assert (len(dropped), len(sample)) == (SAMPLE, 2 * SAMPLE)
    for text, line in sample.items():
        row = int(text.split()[0])
        assert (line["own"], line["first"], line["place"] == 0) == (row, 59 - row, row % 3 == 0)
        assert row < 30 or of_half[text] == line
    assert sample.keys() != drawn(whole, seed=2).keys()
