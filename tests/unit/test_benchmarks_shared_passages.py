"""Which dev and test queries ask about a passage that training has."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from shared_passages import shared


def test_near_queries_are_those_with_the_same_passage_and_half_of_the_words() -> None:
    train = {"t1": {"a", "b"}, "t2": {"c"}}
    asked = {"new": {"d"}, "other words": {"b"}, "near": {"d", "a"}, "near, but of another passage": {"c"}}
    words = {"t1": {"x", "y", "z"}, "t2": {"u"}, "new": {"x", "y", "z"}, "other words": {"x", "v"}}
    words |= {"near": {"x", "y", "w"}, "near, but of another passage": {"x", "y", "z"}}
    known, near = shared(train, asked, words)
    assert known == {"other words", "near", "near, but of another passage"}
    assert near == {"near"}
