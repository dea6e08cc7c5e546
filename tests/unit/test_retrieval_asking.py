"""Answers of several blocks come from one version of the index, however the pool changes meanwhile."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from raydense.retrieval.asking import Answer, of_one_version
from raydense.retrieval.merge import no_hits


def answered(block: str, version: int) -> Answer:
    return Answer([block], no_hits(1, 1), f"index {version}", version)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.integers(1, 4), max_size=6), st.integers(1, 4))
def test_answers_end_in_one_version(first: list[int], later: list[int], last: int) -> None:
    """The pool may swap, or be closed and started again, which counts from 1, any number of times; then it stays."""
    asked: list[str] = []
    versions: Iterator[int] = iter(later)

    def ask(queries: list[str]) -> Answer:
        asked.extend(queries)
        assert len(asked) <= 50, "asks for ever"
        return answered(queries[0], next(versions, last))

    blocks = [f"q{i}" for i in range(len(first))]
    found = of_one_version([answered(block, version) for block, version in zip(blocks, first, strict=True)], ask)

    assert [answer.queries for answer in found] == [[block] for block in blocks]
    assert len({answer.version for answer in found}) == 1
    if len(set(first)) == 1:
        assert asked == []
