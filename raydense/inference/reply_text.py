"""What is read from a language model's reply: its text, or its lines as queries."""

from __future__ import annotations

import re

# what a reasoning model writes before its answer, if its server leaves it there; <think> itself may be the end of its prompt
_THOUGHTS = re.compile(r"\A(?:.*?</think>|\s*<think>.*)", re.S)
_NUMBER = re.compile(
    r"\s*(?:[-*•]\s+|\*\*\(?\d{1,3}[.):]\*\*\s*|\(?\d{1,3}[.):](?:\s+|(?=\D))|[（(]?\d{1,3}[、．）]\s*|(?:\*\*)?(?:query|question|q)\s*\d{1,3}(?:\*\*)?\s*[.):](?:\*\*)?\s*)",
    re.I,
)
_AROUND = {"**": "**", '"': '"', "'": "'", "“": "”", "«": "»", "「": "」"}


def text_of(reply: str) -> str:
    """A reply without the thoughts that a reasoning model writes before it."""
    return _THOUGHTS.sub("", reply).strip()


def queries_of(reply: str, cut: bool, most: int, once: bool) -> tuple[list[str], dict[str, int]]:
    """The first `most` queries of a reply, a line each; how many it lacks (`empty`), and has `repeated` (if each is kept `once`) or `surplus`.

    Numbers and bullets are removed where half of the lines have some, and where two have, the other lines are none: they introduce the queries,
    explain or close them. One number alone may belong to its query. So are lines that end with a colon or fence the queries, and the last line
    of a reply that a limit `cut`. Quotes and asterisks around a query are removed.
    """
    lines = text_of(reply).splitlines()
    lines = [bare for line in (lines[:-1] if cut else lines) if (bare := _bare(line))]
    parted = [(line, _bare(line[number.end() :]) if (number := _NUMBER.match(line)) else "") for line in lines]
    numbered = [text for _, text in parted if text]
    if 2 * len(numbered) >= len(lines):
        lines = numbered if len(numbered) > 1 else [text or line for line, text in parted]
    full = [line for line in lines if not line.endswith((":", "：")) and not line.startswith("```")]
    kept = list(dict.fromkeys(full)) if once else full
    counts = {"empty": max(0, most - len(full)), "repeated": len(full) - len(kept), "surplus": max(0, len(kept) - most)}
    return kept[:most], counts


def _bare(line: str) -> str:
    """A line without what is around all of it."""
    line = line.strip()
    for first, last in _AROUND.items():
        inner = line[len(first) : -len(last)]
        if inner and line == f"{first}{inner}{last}" and first not in inner:
            return _bare(inner)
    return line
