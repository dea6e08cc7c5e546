"""Answer matching as DPR has it, read slowly; expressions that would search for ever; the first rank with an answer."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raydense.evaluation.answers as answers
from raydense.evaluation.answers import RegexMatchers, first_answer_ranks, normal_tokens, token_matcher
from raydense.evaluation.examples import answer_patterns, cut


def slow_tokens(text: str) -> list[str]:
    """Runs of letters, digits and marks; other visible signs one by one (DPR's SimpleTokenizer), and so each Chinese character, with its marks."""
    tokens: list[str] = []
    word = chinese = False
    for sign in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(sign)[0]
        if chinese and kind == "M":
            tokens[-1] += sign
            continue
        chinese = unicodedata.name(sign, "").startswith("CJK UNIFIED IDEOGRAPH")
        if chinese:
            tokens, word = [*tokens, sign], False
            continue
        if kind in "LNM":
            tokens = [*tokens[:-1], tokens[-1] + sign] if word else [*tokens, sign]
        elif kind not in "ZC":
            tokens.append(sign)
        word = kind in "LNM"
    return [token.lower() for token in tokens]


words = st.text(st.sampled_from("abA é\u0301-.,'\n\t\u00a0\u200b1中文。"), max_size=12)


@given(text=words, found=st.lists(words, max_size=3))
def test_equals_the_slow_reading(text: str, found: list[str]):
    tokens = slow_tokens(text)
    expected = False
    for answer in map(slow_tokens, found):
        expected |= any(tokens[i : i + len(answer)] == answer for i in range(len(tokens)) if answer)
    assert token_matcher(found)(normal_tokens(text)) == expected


@pytest.mark.parametrize(
    ("answer", "text", "held"),
    [
        ("New York", "In new\nyork, once", True),
        ("york", "yorkshire", False),
        ("Beyoncé", "BEYONCE\u0301 sang", True),
        ("U.S.", "the U . S . army", True),
        ("1984", "in 19845", False),
        ("", "anything", False),
        ("\u200b", "anything", False),
        ("梵語", "夜柔吠陀可以為研究梵語的參考", True),
        ("語梵", "夜柔吠陀可以為研究梵語的參考", False),
        ("364.6公里", "全长364.6公里。", True),
        ("64.6公里", "全长364.6公里。", False),
        ("ω-force", "光荣和ω-force开发", True),
        ("force", "光荣和ω-forces开发", False),
        ("カタカナ", "これはカタカナです", True),
        ("か", "がく", False),
        ("が", "か\u3099く", True),
        ("서울", "서울은 수도", True),
        ("소", "손", False),
        ("𠀋", "𠀀𠀋", True),
    ],
)
def test_tokens(answer: str, text: str, held: bool):
    assert token_matcher([answer])(normal_tokens(text)) is held


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


def test_expressions_match_any_case_and_bad_ones_are_none():
    regexes = RegexMatchers()
    holds = regexes.matcher([r"\b19(84|85)\b", "(x", "r[ée]sum[ée]"])
    assert holds("in 1985")
    assert not holds("in 19855")
    assert holds("RÉSUMÉ")
    assert regexes.invalid == {"(x"}
    assert not RegexMatchers().matcher(["(x", "(" * 5000])("(x")


def test_an_endless_search_is_given_up_once_and_for_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "_SEARCH_S", 0.05)
    regexes = RegexMatchers()
    holds = regexes.matcher(["(a|aa)+$", "other"])
    text = "a" * 60 + "!"
    assert not holds(text)
    assert regexes.given_up == {"(a|aa)+$"}
    assert holds(f"{text} other")


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
