"""Answer matching as DPR has it, read slowly; expressions that would search for ever."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raydense.data.answers as answers
from raydense.data.answers import RegexMatchers, normal_tokens, token_matcher


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
    held = RegexMatchers(doubt=True).matcher(["(a|aa)+$"])
    assert held(text)
    assert held("b"), "it is searched for again"
