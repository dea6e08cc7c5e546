"""Equal questions and equal passages become one, as a dictionary would do it."""

from __future__ import annotations

import hashlib
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.construction import labelled
from raydense.construction.answer_tokens import AnswerTokens
from raydense.construction.labelled import QUESTIONS, Rules
from raydense.construction.merging import first_passages, merge_questions
from raydense.construction.questions import Document, Question
from raydense.errors import InputError

TEXTS = st.sampled_from(["what is a fox", "What  is a FOX", "ｗhat is a fox", "who", " who", "猫是什么"])
SPLITS = st.sampled_from(["", "train", "dev", "test"])
ROWS = st.lists(st.tuples(TEXTS, st.lists(st.sampled_from("abc"), max_size=2), SPLITS), min_size=1, max_size=12)


def questions(rows) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"question_id": f"q{n}", "question": text, "answers": answers, "split": split, "where": f"f:{n}"}
            for n, (text, answers, split) in rows
        ],
        QUESTIONS,
    )


@given(ROWS, st.integers(1, 12))
def test_questions_of_one_text_are_one(rows, cut):
    numbered = list(enumerate(rows))
    merged = merge_questions([questions(numbered[:cut]), questions(numbered[cut:])])
    groups: dict[str, list[int]] = {}
    for n, (text, _, _) in numbered:
        groups.setdefault(" ".join(text.replace("ｗ", "w").lower().split()), []).append(n)
    expected, row = [], {}
    for at, members in enumerate(groups.values()):
        answers = list(dict.fromkeys(a for n in members for a in rows[n][1]))
        split = min((rows[n][2] or "train" for n in members), key=["test", "dev", "train"].index)
        expected.append({"query_id": f"q{members[0]}", "text": rows[members[0]][0].strip(), "answers": answers, "split": split})
        row |= dict.fromkeys(members, at)
    assert merged.queries.to_pylist() == expected
    assert [n for block in merged.of_block for n in block.tolist()] == [row[n] for n in range(len(rows))]
    assert merged.repeated == len(rows) - len(groups)
    assert merged.moved == sum((rows[n][2] or "train") != expected[row[n]]["split"] for n in range(len(rows)))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("pqr"), st.sampled_from([0.0, 0.6])), max_size=14), st.integers(0, 14))
def test_the_positive_pairs_are_each_once(rows, cut):
    asked = [(n, (text, [], "")) for n, text in enumerate(["a", "b", "A", "c"])]  # the third asks what the first does
    merged = merge_questions([questions(asked), questions([])])
    table = pa.table(
        {
            "question": pa.array([q for q, _, _ in rows], pa.int32()),
            "passage_id": pa.array([p for _, p, _ in rows], pa.string()),
            "f1": pa.array([f for *_, f in rows], pa.float32()),
        }
    )
    none = table.slice(0, 0)
    pairs = merged.pairs([table, none]).to_pylist()
    expected = {(["q0", "q1", "q0", "q3"][q], p) for q, p, f1 in rows if f1 > 0}
    assert len(pairs) == len(expected)
    assert {(pair["query_id"], pair["passage_id"]) for pair in pairs} == expected
    assert [pair["query_id"] for pair in pairs] == sorted(pair["query_id"] for pair in pairs)
    assert {pair["relevance"] for pair in pairs} <= {1}


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4))
def test_the_first_passage_of_an_id_counts(blocks):
    ids = [[hashlib.blake2b(bytes([n]), digest_size=16).hexdigest() for n in block] for block in blocks]
    seen: set[str] = set()
    expected = [[not (one in seen or seen.add(one)) for one in block] for block in ids]
    assert [mask.tolist() for mask in first_passages([pa.chunked_array([pa.array(block, pa.string())]) for block in ids])] == expected


def test_an_id_of_two_questions_is_refused_with_both_places():
    one, two = questions([(3, ("a", [], ""))]), questions([(3, ("b", [], ""))])
    two = two.set_column(4, "where", pa.array(["g:9"]))
    with pytest.raises(InputError, match=r"g:9: question_id 'q3' is repeated \(first at f:3\)"):
        merge_questions([one, two])


@pytest.mark.parametrize("answers", [[], ["a b", "c d", "e"]])
def test_a_paragraph_is_split_into_tokens_once(answers):
    """Not once for each answer; a question without answers needs no tokens."""
    split: list[str] = []

    class Counted(AnswerTokens):
        def __call__(self, text: str):
            split.append(text)
            return super().__call__(text)

    question = Question("q", "which?", answers, [Document("d", "", ["x a b y", "z z", " ", "e f"])], "", "f:1")
    rules = Rules("words", 1, 0.5, False)
    found = labelled._passages_of(question, rules, Counted("words"), Counter())
    assert split == [*answers, *(["x a b y", "z z", "e f"] if answers else [])]
    assert [row["f1"] for row in found] == ([1.0, 0.0, 1.0] if answers else [0.0] * 3)
