"""Joins the paragraphs of a document to passages (DuReader-retrieval, section 2.2.2, "Passage Length Control")."""

from __future__ import annotations

from collections.abc import Sequence


def joined(lengths: Sequence[int], length: int) -> list[tuple[int, int]]:
    """The passages of a document as ranges (start, stop) of its paragraphs, in order: each ends where it is longer than `length`.

    `lengths` are those of the paragraphs. What is left at the end is a passage of its own, and so is a document that is shorter.
    """
    found, start, held = [], 0, 0
    for number, each in enumerate(lengths, 1):
        held += each
        if held > length:
            found.append((start, number))
            start, held = number, 0
    if start < len(lengths):
        found.append((start, len(lengths)))
    return found
