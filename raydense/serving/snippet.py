"""Snippets: the part of a text that has the most words of a question, with these marked."""

from __future__ import annotations

import unicodedata

import numpy as np

from raydense.retrieval.word_rules import places
from raydense.retrieval.words import Words

_MORE = "…"
_LOOKED_AT = 20_000  # characters of a text
Part = tuple[str, bool]
Span = tuple[int, int]


def printable(text: str) -> str:
    """The text on one line, without what a terminal would take as a command."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def columns(text: str) -> int:
    """How many columns of a terminal a printable text takes: two for a wide character, none for one that is put on another."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def clipped(text: str, width: int) -> str:
    """The beginning of a printable text that fits into `width` columns, with … where something is left out."""
    if columns(text) <= width:
        return text
    kept = ""
    for char in text:
        if columns(kept + char) > width - 1:
            break
        kept += char
    return f"{kept.rstrip()}{_MORE}" if width > 0 else ""


class Marker:
    """Finds the words of a question in texts, by BM25's rules for English: stems, without stop words; of CJK, pairs of characters."""

    def __init__(self, question: str) -> None:
        self._vocabulary = Words("english", "en").vocabulary()
        wanted, _ = self._vocabulary.split([question.encode(errors="replace")])
        self._wanted = np.unique(wanted)

    def marks(self, text: str) -> list[Span]:
        """Where words of the question stand, as ranges of characters [start, stop), rising and apart."""
        spans = [(start, stop) for start, stop, _ in places(text)]
        ids, counts = self._vocabulary.split([text[start:stop].encode(errors="replace") for start, stop in spans])
        owner = np.repeat(np.arange(len(spans)), counts)
        marked = np.unique(owner[np.isin(ids, self._wanted)])
        joined: list[Span] = []
        for start, stop in (spans[number] for number in marked.tolist()):
            if joined and start < joined[-1][1]:  # the next pair of a run
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        return joined

    def snippet(self, text: str, width: int) -> list[Part]:
        """The part of at most `width` columns of a text that has the most words of the question, in pieces: the text, and whether it is marked."""
        text = printable(text[:_LOOKED_AT])
        marks = self.marks(text)
        start, stop = _window(text, marks, width)
        parts: list[Part] = [(_MORE, False)] if start else []
        at = start
        for low, high in (mark for mark in marks if start <= mark[0] and mark[1] <= stop):
            parts += [(text[at:low], False), (text[low:high], True)]
            at = high
        parts += [(text[at:stop], False), (_MORE if stop < len(text) else "", False)]
        return [part for part in parts if part[0]]


def _window(text: str, marks: list[Span], width: int) -> Span:
    """The range of characters that fits with the most marks, the first of such, with these in its middle; it begins and ends at words where it can."""
    edges = np.concatenate([[0], np.cumsum([columns(char) for char in text])])
    if edges[-1] <= width:
        return 0, len(text)
    room = max(1, width - 2)  # for the signs of what is left out
    low, high = np.array(marks or [(0, 0)]).T
    last = np.searchsorted(edges[high], edges[low] + room, side="right") - 1
    best = int(np.argmax(last - np.arange(len(low))))
    first, end = int(low[best]), int(high[max(best, last[best])])
    before = max(0, room - (edges[end] - edges[first])) // 2
    start = int(np.searchsorted(edges, min(edges[first] - before, edges[-1] - room)))
    start = max(0, start)
    if start and (blank := text.find(" ", start - 1, first)) >= 0:
        start = blank + 1
    stop = int(np.searchsorted(edges, edges[start] + room, side="right")) - 1
    if stop < len(text) and text[stop] != " " and (blank := text.rfind(" ", end, stop)) > start:
        stop = blank
    return start, stop
