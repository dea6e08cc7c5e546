"""What is read from the lines of a language model's reply."""

import pytest

from raydense.inference.reply_text import queries_of, text_of


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("1. who is a\n2. what is b", ["who is a", "what is b"]),
        ("- who is a\n- what is b\n\n", ["who is a", "what is b"]),
        ("Here they are:\n1) who is a", ["who is a"]),
        ("who is a\n3. liga tabelle\nwhat is b", ["who is a", "3. liga tabelle", "what is b"]),
        ("1. 3. liga tabelle\n2. what is b", ["3. liga tabelle", "what is b"]),
        ("3. liga tabelle\nwhat is b", ["liga tabelle", "what is b"]),
        ("1. Persons\nwho is a\n2. Things\nwhat is b", ["Persons", "who is a", "Things", "what is b"]),
        ("who is a\nwhat is b\n- one\n- two", ["who is a", "what is b", "one", "two"]),
        ("Query 1: who is a\n**Query 2:** what is b\n**Query 3**: c", ["who is a", "what is b", "c"]),
    ],
)
def test_numbers_are_removed_where_lines_are_numbered(reply: str, wanted: list[str]) -> None:
    assert queries_of(reply, cut=False, most=5, once=True)[0] == wanted


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("Here are two queries for the passage above.\n1. who is a\n2. what is b", ["who is a", "what is b"]),
        ("1. who is a\n2. what is b\n\nI hope these help!", ["who is a", "what is b"]),
        ("Here they are:\n1. who is a\n2. what is b\nI hope these help!", ["who is a", "what is b"]),
        ("```\n1. who is a\n2. what is b\n```", ["who is a", "what is b"]),
        ("1. Short ones:\n   - who is a\n2. Long ones:\n   - what is b, and when", ["who is a", "what is b, and when"]),
        ("Query 1:\nwho is a\nQuery 2:\nwhat is b", ["who is a", "what is b"]),  # the lines with numbers hold nothing else
    ],
)
def test_lines_around_a_numbered_list_are_no_queries(reply: str, wanted: list[str]) -> None:
    found = queries_of(reply, cut=False, most=2, once=True)
    assert found == (wanted, {"empty": 0, "repeated": 0, "surplus": 0})


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("1. **who is a**", "who is a"),
        ("**1. who is a**", "who is a"),
        ("**1.** who is a", "who is a"),
        ('1. **"who is a"**', "who is a"),
        ('1. "**who is a**"', "who is a"),
        ("**who** is **a**", "**who** is **a**"),
        ('"who" is "a"', '"who" is "a"'),
        ("**", "**"),
        ("who is **a**", "who is **a**"),
    ],
)
def test_quotes_and_asterisks_around_a_query_are_removed(line: str, wanted: str) -> None:
    assert queries_of(line, cut=False, most=5, once=True)[0] == [wanted]


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("<think>hm\n\nwell</think>\n\nwho is a", "who is a"),
        ("Okay, the passage is\nabout a.\n</think>\n\nwho is a", "who is a"),  # the prompt ended with <think>
        ("hm</think>what is </think>?", "what is </think>?"),
        ("<think>hm, and so on", ""),
        ("what does <think> mean?", "what does <think> mean?"),
        (" who is a\n", "who is a"),
    ],
)
def test_the_thoughts_before_an_answer_are_left_out(reply: str, wanted: str) -> None:
    assert text_of(reply) == wanted
    assert queries_of(reply, cut=False, most=5, once=True)[0] == wanted.splitlines()
