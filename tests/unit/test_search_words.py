"""BM25's words: English as bm25s has them, Chinese, Japanese and Korean as Lucene's CJKAnalyzer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from bm25s.tokenization import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

from raydense.search.words import Words

PLAIN = Words("none", "none")


def words_of(text: str, words: Words = PLAIN) -> list[str]:
    tokenizer = words.tokenizer()
    ids, lengths = words.split([text], tokenizer)
    assert lengths.tolist() == [len(ids)]
    names = {number: name for name, number in tokenizer.get_vocab_dict().items()}
    return [names[number] for number in ids.tolist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("一二三四", ["一二", "二三", "三四"]),
        ("糖尿病 type2 患者,肝?", ["糖尿", "尿病", "type2", "患者", "肝"]),
        ("ab糖尿病cd", ["ab", "糖尿", "尿病", "cd"]),
        ("こんにちは世界", ["こん", "んに", "にち", "ちは", "は世", "世界"]),
        ("안녕 하세요", ["안녕", "하세", "세요"]),
        ("𠮷野家", ["𠮷野", "野家"]),
        ("Été naïve x ab", ["été", "naïve", "ab"]),
        ("。，", []),
    ],
)
def test_neighbours_are_the_words_of_a_run(text: str, expected: list[str]) -> None:
    assert words_of(text) == expected


@given(st.text(st.characters(codec="utf-8", max_codepoint=0x2FFF), max_size=60))
def test_other_texts_are_as_they_were(text: str) -> None:
    theirs = Tokenizer(stopwords=None, stemmer=None)
    ids = [number for line in theirs.streaming_tokenize([text], update_vocab=True, allow_empty=False) for number in line]
    names = {number: name for name, number in theirs.get_vocab_dict().items()}
    assert words_of(text) == [names[number] for number in ids]


def test_a_query_finds_the_words_of_a_passage() -> None:
    vocabulary = pa.chunked_array([["糖尿", "尿病", "高血"]])
    ids, starts = PLAIN.query_ids(["高血压", "感冒", "我有糖尿病"], vocabulary)
    assert ids.tolist() == [2, 0, 1]
    assert np.diff(starts).tolist() == [1, 0, 2]
