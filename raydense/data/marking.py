"""The script with which pages mark the words of a query in a passage."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from raydense.data.cjk import CJK


@cache
def marking_script() -> str:
    """JavaScript for a page: `wordsOf(query)`, and `marked(element, text, words)`, which puts a text into an element."""
    script = files("raydense.data").joinpath("marking.js").read_text(encoding="utf-8")
    return script.replace("{{ cjk }}", _in_javascript(CJK))


def _in_javascript(ranges: str) -> str:
    """Ranges of characters for the brackets of a regular expression with the flag `u`, in ASCII."""
    return "".join(one if one == "-" else f"\\u{{{ord(one):x}}}" for one in ranges)
