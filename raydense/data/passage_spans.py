"""Decides where documents are cut into passages: blocks of words, or whole sentences up to a number of tokens.

It uses no tokenizer and no file: the input is texts and a function that returns the offsets of their tokens, the output is spans,
pairs of character positions (start, stop). The spans of a text rise, never overlap, and leave out nothing but white space.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
Ints = NDArray[np.int64]
# For each text: the characters where its tokens begin, rising, or None if it has no more tokens than a passage may have.
Starts = Callable[[list[str]], Iterable[Ints | None]]

_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_APART = frozenset(f" \t\n\r\u00a0\u3000{string.punctuation}…”’»」』】》）。、，；：！？")


def word_spans(texts: list[str], length: int) -> list[list[Span]]:
    """For each text its consecutive blocks of `length` words, separated by white space; the last block may be shorter.

    DPR, section 4.1: "multiple, disjoint text blocks of 100 words". Disjoint is taken literally: a short last block is not
    filled up from elsewhere in the document, so no text is in two passages.
    """
    block = re.compile(rf"\S+(?:\s+\S+){{0,{length - 1}}}")
    return [[found.span() for found in block.finditer(text)] for text in texts]


def token_spans(texts: list[str], language: str, length: int, starts: Starts, words_first: bool = False) -> list[list[Span]]:
    """For each text its consecutive groups of whole sentences that have at most `length` tokens; query-as-context, section 4.1.

    A sentence is cut, at a token, only if it alone has more tokens; its last piece is grouped with the next sentences.
    Sentences are grouped by the tokens of the whole text. A tokenizer may count a group differently on its own, so
    each is counted again, and cut again where it is too long: the limit holds for every passage as it will be read. Only a single
    character of more tokens than that is left as it is. With `words_first` the tokenizer splits at white space and punctuation before all
    else: a group that begins and ends there has the same tokens on its own, and is not counted again.
    """
    found: list[list[Span]] = [[] for _ in texts]
    ends: dict[int, Ints] = {}
    open_ = [(number, span) for number, text in enumerate(texts) if (span := _trimmed(text, 0, len(text)))]
    while open_:
        doubtful: list[tuple[int, Span]] = []
        for (number, span), tokens in zip(open_, starts([texts[n][a:b] for n, (a, b) in open_]), strict=True):
            if tokens is None:
                found[number].append(span)
                continue
            if number not in ends:
                ends[number] = sentence_ends(texts[number], language)
            pieces = _cut(texts[number], span, tokens + span[0], ends[number], length)
            for piece in pieces:
                if pieces == [span] or (words_first and _is_apart(texts[number], *piece)):
                    found[number].append(piece)
                else:
                    doubtful.append((number, piece))
        open_ = doubtful
    return [sorted(spans) for spans in found]


def sentence_ends(text: str, language: str) -> Ints:
    """The characters where the sentences of `text` end, without the white space after them: int64, rising.

    By the rules of sentencex (Wikimedia) for the language, or the nearest language that has rules; doubtful ends are not taken.
    """
    from sentencex import get_sentence_boundaries

    # sentencex 1.0.32 panics after a full stop on white space of more than one byte; a blank is as long in characters
    plain = text if text.isascii() else _WIDE_SPACE.sub(" ", text)
    sentences = get_sentence_boundaries(language, plain)
    return np.array([s["start_index"] + len(s["text"].rstrip()) for s in sentences if not s["text"].isspace()], dtype=np.int64)


def _cut(text: str, span: Span, tokens: Ints, ends: Ints, length: int) -> list[Span]:
    """`span` of the text in pieces of at most `length` tokens, each up to its last sentence end, or full if it has none.

    A sentence's white space belongs to what follows, since some tokenizers begin a word's token there.
    """
    place, stop = span
    pieces = []
    while place < stop:
        reach = _nth(tokens, int(np.searchsorted(tokens, place)) + length, stop)
        whole = int(np.searchsorted(ends, reach, side="right")) - 1
        if reach == stop or whole < 0 or ends[whole] <= place:
            end = reach if reach > place else _nth(tokens, int(np.searchsorted(tokens, place, side="right")), stop)
        else:
            end = int(ends[whole])
        pieces.append(_trimmed(text, place, end))
        place = end
    return [piece for piece in pieces if piece]


def _is_apart(text: str, start: int, stop: int) -> bool:
    """Whether white space or punctuation is at both ends of a part of the text, within it or without."""
    return all(at in (0, len(text)) or text[at - 1] in _APART or text[at] in _APART for at in (start, stop))


def _nth(tokens: Ints, number: int, stop: int) -> int:
    return int(tokens[number]) if number < len(tokens) else stop


def _trimmed(text: str, start: int, stop: int) -> Span | None:
    """The span without the white space at its ends; None where it is all white space."""
    part = text[start:stop]
    bare = part.lstrip()
    start = stop - len(bare)
    return (start, start + len(bare.rstrip())) if bare else None
