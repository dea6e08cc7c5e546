"""A run without the passages that are the query itself has the other ones in their order, ranks from 1, and no more than asked."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from raydense.retrieval.search import without_identical
from raydense.retrieval.settings import SearchSettings

IDS = st.sampled_from("abcdef")


@given(st.dictionaries(IDS, st.lists(IDS, unique=True), max_size=5), st.sets(IDS), st.integers(1, 5))
def test_the_others_move_up(run: dict[str, list[str]], judged: set[str], k: int) -> None:
    rows = [(query, passage, rank, 9.0 - rank) for query, hits in run.items() for rank, passage in enumerate(hits, 1)]
    names = ["query_id", "passage_id", "rank", "score"]
    types = [pa.string(), pa.string(), pa.int32(), pa.float32()]
    table = pa.table({name: pa.array([row[i] for row in rows], types[i]) for i, name in enumerate(names)})
    left = without_identical(table, pa.chunked_array([sorted(judged)], pa.string()), k)
    expected = []
    for query, hits in run.items():
        others = [(p, 9.0 - rank) for rank, p in enumerate(hits, 1) if p != query or query in judged]
        expected += [(query, passage, place, score) for place, (passage, score) in enumerate(others[:k], 1)]
    assert [tuple(row.values()) for row in left.to_pylist()] == expected
    assert left.schema.types == types


def test_runs_made_before_are_still_the_same() -> None:
    given = {"index": "i", "queries": "q", "output": "o"}
    assert "drop_identical" not in SearchSettings.read(given).shaping()
    assert SearchSettings.read({**given, "drop_identical": True}).shaping()["drop_identical"]
