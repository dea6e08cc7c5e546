"""The first rank with an answer, and answers marked in a text."""

from __future__ import annotations

import numpy as np
import pytest

import raydense.evaluation.answers as answers
from raydense.data.answers import normal_tokens, token_matcher
from raydense.evaluation.answers import first_answer_ranks
from raydense.evaluation.examples import answer_patterns, cut


def test_answers_are_marked_where_they_match():
    marks = answer_patterns(["梵語", "york"], as_regex=False)
    assert cut("研究梵語的參考, York語, yorkshire", marks) == "研究<mark>梵語</mark>的參考, <mark>York</mark>語, yorkshire"


@pytest.mark.parametrize(
    ("expressions", "text", "marked"),
    [
        (["(?x)a # c", "b"], "a and b", "<mark>a</mark> <mark>a</mark>nd <mark>b</mark>"),
        ([r"(x)y", r"(a|b)-\1"], "xy, a-a, a-b", "<mark>xy</mark>, <mark>a-a</mark>, a-b"),
        (["(broken", "fine"], "fine", "<mark>fine</mark>"),
        (["new york", "york city", "y"], "New York City, yes", "<mark>New York City</mark>, <mark>y</mark>es"),
    ],
)
def test_each_expression_marks_for_itself(expressions: list[str], text: str, marked: str):
    assert cut(text, answer_patterns(expressions, as_regex=True)) == marked


def test_the_first_rank_with_an_answer():
    texts = {row: f"passage {row}" for row in range(50)}
    hits = [np.arange(40), np.arange(40), np.array([7, 3]), np.array([], dtype=np.int64)]
    matchers = [token_matcher([answer]) for answer in ("passage 25", "passage 49", "3", "1")]
    ranks = first_answer_ranks(hits, matchers, lambda rows: [normal_tokens(texts[int(row)]) for row in rows])
    assert ranks.tolist() == [26, 0, 2, 0]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_passage_is_read_once_for_all_queries_of_a_window(monkeypatch: pytest.MonkeyPatch, at_once: int):
    """And not at all for a query that has its answer."""
    monkeypatch.setattr(answers, "_AT_ONCE", at_once)
    rng = np.random.default_rng(3)
    hits = [rng.permutation(40)[: rng.integers(0, 30)] for _ in range(12)]
    wanted = [int(rng.integers(0, 40)) for _ in hits]
    read: list[list[int]] = []

    def texts(rows: np.ndarray) -> list[str]:
        read.append(rows.tolist())
        return [str(row) for row in rows]

    ranks = first_answer_ranks(hits, [str(row).__eq__ for row in wanted], texts, step=4)
    expected = [line.tolist().index(row) + 1 if row in line else 0 for line, row in zip(hits, wanted, strict=True)]
    assert ranks.tolist() == expected
    assert all(len(set(rows)) == len(rows) for rows in read)
    looked = {row for line, rank in zip(hits, expected, strict=True) for row in line[: -(-rank // 4) * 4 if rank else len(line)].tolist()}
    assert {row for rows in read for row in rows} == looked
    windows = [-(-(rank or len(line)) // 4) for line, rank in zip(hits, expected, strict=True)]
    assert len(read) == sum(max(windows[at : at + at_once]) for at in range(0, len(hits), at_once))
