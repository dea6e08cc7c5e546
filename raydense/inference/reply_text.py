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

    Lines that end with a colon or fence the queries are none, nor is the last line of a reply that a limit `cut`. Of the others, numbers and
    bullets are removed where half have some. Where more have, and two at least, those without are none: they introduce the queries, explain or
    close them; where it is half, the numbered ones may be the headings of queries. Quotes and asterisks around a query are removed.
    """
    lines = text_of(reply).splitlines()
    lines = [bare for line in (lines[:-1] if cut else lines) if (bare := _bare(line))]
    parted = [(line, _bare(line[number.end() :]) if (number := _NUMBER.match(line)) else "") for line in lines]
    parted = [(line, text) for line, text in parted if not (text or line).endswith((":", "：")) and not line.startswith("```")]
    numbered = [text for _, text in parted if text]
    full = [line for line, _ in parted]
    if 2 * len(numbered) >= len(parted):
        most_are = len(numbered) > 1 and 2 * len(numbered) > len(parted)
        full = numbered if most_are else [text or line for line, text in parted]
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
