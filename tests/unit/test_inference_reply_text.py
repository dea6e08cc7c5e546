"""What is read from the lines of a language model's reply."""

import pytest

from raydense.inference.reply_text import queries_of


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("1. who is a\n2. what is b", ["who is a", "what is b"]),
        ("- who is a\n- what is b\n\n", ["who is a", "what is b"]),
        ("Here they are:\n1) who is a", ["who is a"]),
        ("who is a\n3. liga tabelle\nwhat is b", ["who is a", "3. liga tabelle", "what is b"]),
        ("1. 3. liga tabelle\n2. what is b", ["3. liga tabelle", "what is b"]),
    ],
)
def test_numbers_are_removed_where_lines_are_numbered(reply: str, wanted: list[str]) -> None:
    assert queries_of(reply, cut=False, most=5, once=True)[0] == wanted
