"""What is read from a language model's reply: its text, or its lines as queries."""

from __future__ import annotations

import re

# what a reasoning model writes before its answer, if its server leaves it there; <think> itself may be the end of its prompt
_THOUGHTS = re.compile(r"\A(?:.*?</think>|\s*<think>.*)", re.S)
_NUMBER = re.compile(
    r"\s*(?:[-*•]\s+|\*\*\(?\d{1,3}[.):]\*\*\s*|\(?\d{1,3}[.):](?:\s+|(?=\D))|[（(]?\d{1,3}[、．）]\s*|(?:query|question|q)\s*\d{1,3}\s*[.):]\s*)",
    re.I,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "«": "»", "「": "」"}


def text_of(reply: str) -> str:
    """A reply without the thoughts that a reasoning model writes before it."""
    return _THOUGHTS.sub("", reply).strip()


def queries_of(reply: str, cut: bool, most: int, once: bool) -> tuple[list[str], dict[str, int]]:
    """The first `most` queries of a reply, a line each; how many it lacks (`empty`), and has `repeated` (if each is kept `once`) or `surplus`.

    Numbers and bullets are removed where half of the lines have some (one alone may belong to its query), and quotes around a query. Lines that introduce the queries or fence them are none, nor is the last line of a
    reply that a limit `cut`.
    """
    lines = text_of(reply).splitlines()
    lines = lines[:-1] if cut else lines
    numbered = 2 * sum(bool(_NUMBER.match(line)) for line in lines) >= sum(bool(line.strip()) for line in lines)
    found = [_stripped(line, numbered) for line in lines]
    full = [line for line in found if line and not line.endswith((":", "：")) and not line.startswith("```")]
    kept = list(dict.fromkeys(full)) if once else full
    counts = {"empty": max(0, most - len(full)), "repeated": len(full) - len(kept), "surplus": max(0, len(kept) - most)}
    return kept[:most], counts


def _stripped(line: str, numbered: bool) -> str:
    line = _NUMBER.sub("", line, count=1).strip() if numbered and _NUMBER.match(line) else line.strip()
    inner = line[1:-1]
    return inner.strip() if len(line) > 2 and _QUOTES.get(line[0]) == line[-1] and line[0] not in inner else line
