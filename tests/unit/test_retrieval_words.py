"""BM25's words: English as bm25s has them, Chinese, Japanese and Korean as Lucene's CJKAnalyzer."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import Stemmer
from bm25s.tokenization import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

from raydense.retrieval.words import Words, positions

PLAIN = Words("none", "none")


def words_of(text: str, words: Words = PLAIN) -> list[str]:
    vocabulary = words.vocabulary()
    ids, lengths = vocabulary.split([text.encode()])
    assert lengths.tolist() == [len(ids)]
    names = vocabulary.names()
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


CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0002fa1f"
# what Python's lower case, and its classes of characters, treat in ways of their own
SPECIAL = "ΣσςİıKſßΑ'.:_-\u0307\u00ad\u00a0\u2028\u3000ー゙一二肝ｱaAbB9 \n\x00\x1f\x85\U0010ffff"
TEXTS = st.lists(st.text(st.one_of(st.sampled_from(SPECIAL), st.characters(codec="utf-8")), max_size=30), max_size=6)


def neighbours(run: re.Match[str]) -> str:
    return " " + (" ".join(a + b for a, b in pairwise(run[0])) or run[0]) + " "


@given(TEXTS, TEXTS, st.sampled_from([("none", "none"), ("english", "en"), ("none", "fr"), ("german", "none")]))
def test_words_and_their_numbers_are_those_of_bm25s(first: list[str], second: list[str], names: tuple[str, str]) -> None:
    stemmer, stopwords = (None if name == "none" else name for name in names)
    theirs = Tokenizer(splitter=rf"(?u)\b\w\w+\b|[{CJK}]", stopwords=stopwords, stemmer=Stemmer.Stemmer(stemmer) if stemmer else None)
    ours = Words(*names).vocabulary()
    for texts in (first, second):
        marked = [re.sub(f"[{CJK}]+", neighbours, text) for text in texts]
        expected = list(theirs.streaming_tokenize(marked, update_vocab=True, allow_empty=False))
        flat, lengths = ours.split([text.encode() for text in texts])
        assert lengths.tolist() == [len(ids) for ids in expected]
        assert flat.tolist() == [number for ids in expected for number in ids]
    known = theirs.get_vocab_dict()
    assert ours.names() == sorted(known, key=known.__getitem__)


def test_a_query_of_half_a_character_is_split_like_any_other() -> None:
    ids, starts = PLAIN.query_ids(["ab\ud800cd"], pa.array(["ab", "cd"]))
    assert (ids.tolist(), starts.tolist()) == ([0, 1], [0, 2])


def test_a_query_finds_the_words_of_a_passage() -> None:
    vocabulary = pa.array(["尿病", "糖尿", "高血"])
    ids, starts = PLAIN.query_ids(["高血压", "感冒", "我有糖尿病"], vocabulary)
    assert ids.tolist() == [2, 1, 0]
    assert np.diff(starts).tolist() == [1, 0, 2]


WORDS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=40)


@given(WORDS, WORDS)
def test_words_are_found_in_the_order_in_which_an_index_sorts_them(vocabulary: list[str], words: list[str]) -> None:
    """Arrow's order of strings is that of their bytes, in `sort_by` of the build as in the comparison here."""
    ordered = pa.table({"word": pa.array(sorted(set(vocabulary)), pa.string())}).sort_by("word")["word"].to_pylist()
    words += vocabulary[:5]
    found = positions(pa.array(words, pa.string()), pa.array(ordered, pa.string()))
    assert found.tolist() == [ordered.index(word) if word in ordered else -1 for word in words]


def test_a_query_does_not_read_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty bits of words are halved twenty times, of the few that are asked for; nothing is hashed."""
    vocabulary = pa.array([f"w{number:07d}" for number in range(1_000_000)])
    taken: list[int] = []

    def counted(words: pa.Array, at: np.ndarray) -> pa.Array:
        taken.append(len(at))
        return words.take(pa.array(np.minimum(at, len(words) - 1)))

    monkeypatch.setattr("raydense.retrieval.words._taken", counted)
    ids, starts = PLAIN.query_ids(["w0000007 nothing w0999999"], vocabulary)
    assert ids.tolist() == [7, 999_999]
    assert starts.tolist() == [0, 2]
    assert len(taken) <= 22
    assert sum(taken) <= 3 * 22
