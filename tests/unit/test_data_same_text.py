"""normalised(): which spellings are one question, against an independent reading, and what its users make of them."""

from __future__ import annotations

import unicodedata

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from raydense.construction.evaluation_queries import Questions, Texts
from raydense.construction.merging import merge_questions
from raydense.data.missing_splits import questions_of
from raydense.data.same_text import normalised

PUNCTUATION = "?!.,;:%)]}”’…。、？！，；：）」"
OPENING = "([{“‘（「"
LETTERS = "aBßé中文ａΣ9-$+"
BLANKS = " \t\n\u3000\u00a0"
texts = st.text(LETTERS + BLANKS + PUNCTUATION + OPENING, max_size=20)


def of(*texts: str) -> list[str]:
    return normalised(pa.array(texts, pa.string())).to_pylist()


def slowly(text: str) -> str:
    """The same, a character after another."""
    lower = "".join(character.lower() for character in unicodedata.normalize("NFKC", text))  # a final sigma is as any other
    plain = unicodedata.normalize("NFKC", lower)
    found: list[str] = []
    for character in " ".join(plain.split()):
        if found[-1:] == [" "] and unicodedata.category(character) in ("Po", "Pe", "Pf"):
            found.pop()
        found.append(character)
    return "".join(found)


def test_spellings_of_one_question():
    assert of("what is x ?", "What is  x?", " what is x？ ", "what is x\u3000?", "WHAT IS X  ？") == ["what is x?"] * 5
    assert of("什么是ＡＢ 。", "什么是ab。") == ["什么是ab。"] * 2
    assert of("is it ( a ) , or b ? !", "is it ( a), or b?!") == ["is it ( a), or b?!"] * 2


def test_other_questions_stay_others():
    different = [
        "what is x?",
        "what is x",
        "what is y?",
        "whatis x?",
        "what is x? why",
        "what is (x)?",
        "5 - 3",
        "5 -3",
        "5-3",
        "a b",
        "ab",
        "",
    ]
    assert len(set(of(*different))) == len(different)


@given(texts)
@example("a . . b ?")
@example(" ? ")
@example("ΑΣ ?")
def test_it_is_the_slow_reading_and_changes_nothing_twice(text):
    (once,) = of(text)
    assert once == slowly(text)
    assert of(once) == [once]


@given(texts, st.data())
def test_blanks_before_punctuation_never_make_another_question(text, data):
    spread = "".join(data.draw(st.text(BLANKS, max_size=2)) + character if character in PUNCTUATION else character for character in text)
    assert of(spread) == of(text)


@given(texts)
def test_a_blank_between_words_counts(text):
    assert of(f"x {text} y z") != of(f"x {text} yz")


TWO = ["what is x ?", "What is x?", "what is y?"]


def test_a_data_set_has_such_questions_once():
    block = {"question_id": ["a", "b", "c"], "question": TWO, "answers": [["1"], ["2"], ["3"]], "split": ["train", "test", "train"]}
    merged = merge_questions([pa.table({**block, "where": ["f:1", "f:2", "f:3"]})])
    assert merged.queries.select(["query_id", "text", "answers", "split"]).to_pylist() == [
        {"query_id": "a", "text": "what is x ?", "answers": ["1", "2"], "split": "test"},
        {"query_id": "c", "text": "what is y?", "answers": ["3"], "split": "train"},
    ]
    assert (merged.repeated, merged.moved) == (1, 1)


def test_overlap_and_the_drawing_of_splits_take_them_for_one():
    train, asked = Questions(pa.array(["a", "c"]), pa.array(TWO[::2])), Questions(pa.array(["b"]), pa.array(TWO[1:2]))
    assert Texts.of(train).numbers(asked).tolist() == [0]
    queries = pa.table({"query_id": ["a", "b", "c"], "text": TWO})
    first, second, third = questions_of(queries["query_id"], queries)
    assert first == second != third
