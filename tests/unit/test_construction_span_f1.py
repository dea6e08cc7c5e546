"""The best span F1 against every span, one after another."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as sets
from hypothesis import strategies as st

from raydense.construction import span_f1
from raydense.construction.answer_tokens import AnswerTokens, unit_of
from raydense.construction.span_f1 import best_span_f1


def brute_force(paragraph: list[int], answer: list[int]) -> float:
    """Algorithm 1 read literally, with precision and recall as SQuAD's evaluation has them."""
    best = 0.0
    for start in range(len(paragraph)):
        for stop in range(start + 1, len(paragraph) + 1):
            span = paragraph[start:stop]
            common = sum((Counter(span) & Counter(answer)).values())
            if common:
                precision, recall = common / len(span), common / len(answer)
                best = max(best, 2 * precision * recall / (precision + recall))
    return best


def tokens(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint32)


@sets(max_examples=500)
@given(
    st.lists(st.integers(0, 5), max_size=24),
    st.lists(st.integers(0, 5), max_size=9),
    st.sampled_from([0.2, 0.5, 0.7, 1.0]),
    st.sampled_from([1, 7, 1 << 20]),
)
def test_it_is_the_best_of_all_spans(paragraph, answer, threshold, cells):
    old, span_f1._CELLS = span_f1._CELLS, cells
    try:
        found = best_span_f1(tokens(paragraph), tokens(answer), threshold)
    finally:
        span_f1._CELLS = old
    expected = brute_force(paragraph, answer)
    if abs(expected - threshold) < 1e-9:  # on the threshold the two ways of rounding may differ
        assert found in (0.0, pytest.approx(expected))
    else:
        assert found == pytest.approx(expected if expected >= threshold else 0.0)


def test_exactly_half_is_positive():
    """Two of four tokens in common with an answer of four: F1 is 0.5, which algorithm 1 labels positive (>=)."""
    assert best_span_f1(tokens([1, 9, 9, 2]), tokens([1, 2, 3, 4]), 0.5) == 0.5


def test_a_long_paragraph_is_searched_whole():
    """The only good span begins at character 9,990 of 10,000."""
    rng = np.random.default_rng(0)
    paragraph = rng.integers(100, 3_000, 10_000)
    answer = np.arange(3_000, 3_012)
    paragraph[9_985:9_997] = answer[::-1]
    assert best_span_f1(paragraph.astype(np.uint32), answer.astype(np.uint32), 0.5) == 1.0


def test_nothing_in_common_or_nothing_at_all_is_zero():
    empty = tokens([])
    for paragraph, answer in ((empty, empty), (empty, tokens([1])), (tokens([1]), empty), (tokens([1, 2]), tokens([3]))):
        assert best_span_f1(paragraph, answer, 0.5) == 0.0


def test_tokens_are_characters_or_words_without_punctuation():
    characters, words = AnswerTokens("characters"), AnswerTokens("words")
    assert characters("太阳花，ＡＢ c_1!").tolist() == [ord(c) for c in "太阳花abc1"]
    assert words("The fox, the  FOX's den").tolist() == [0, 1, 0, 1, 2, 3]
    assert (characters.length("太阳花，A "), words.length("the fox, den")) == (6, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [("दिल्ली", "दौलत"), ("ที่นี่", "ทุน"), ("கோவை", "காவி")],  # Hindi, Thai, Tamil: vowels are combining marks
)
def test_words_keep_their_combining_marks(one, other):
    words = AnswerTokens("words")
    assert [len(words(text)) for text in (one, other, f"{one} {other}!")] == [1, 1, 2]
    assert best_span_f1(words(one), words(other), 0.0) == 0.0


def test_a_variant_of_an_emoji_is_no_token():
    assert AnswerTokens("words")("good \u2764\ufe0f").tolist() == [0]
    assert len(AnswerTokens("characters")("好\u2764\ufe0f")) == 1


def test_the_unit_follows_the_script_of_most_letters():
    assert unit_of(["iphone怎么重启手机屏幕"]) == "characters"
    assert unit_of(["What does 花 mean?", "who"]) == "words"
    assert unit_of([]) == "words"
