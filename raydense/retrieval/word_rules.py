"""The rules by which BM25 finds words in a text, and their versions: an index keeps those that it was built with.

By rules 2 a word is two or more letters, digits and marks. Texts are in Unicode's NFC, full and half width and presentation forms are as the
letters that they show, and characters that a display ignores, as the soft hyphen, are left out. Some scripts do not separate all words by blanks:
in a run of Chinese, Japanese or Korean, as in Lucene's CJKAnalyzer, and of Thai, Lao, Khmer or Burmese, each pair of neighbouring
characters, with their marks, is a word, and so is a single one.
Rules 1, of raydense 0.2, are bm25s's: without marks, NFC or widths, so they tear Hindi and Thai apart. Of ASCII both make the same words.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import regex
from numpy.typing import NDArray

from raydense.data.cjk import CJK

RULES = 2  # of new indexes; those without a number have rules 1
_PAIRED = (  # CJK with iteration marks, the zero 〇 and newer ideographs; without the middle dot, which separates
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3040-\u3096\u309b-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003347f"
)
_JOINING = (  # what `plain` makes a part of the character before it, or leaves out, within a run of these
    "\xad-\xad\u034f-\u034f\u061c-\u061c\u1100-\u11ff\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\u2f00-\u2fd5\u3099-\u309a\u3164-\u3164"
    "\ua960-\ua97c\ud7b0-\ud7fb\ufe00-\ufe0f\ufeff-\ufeff\uff66-\uffdc\U000e0000-\U000e0fff"
)
_IGNORED = regex.compile(  # but not the blank of no width, nor what separates a stem from its ending in Persian
    r"(?:[\p{Default_Ignorable_Code_Point}--[\u200b\u200c]]|(?<!\p{Arabic})\u200c)+", regex.V1
)
_FORMS = re.compile("[\u2f00-\u2fd5\ufb00-\ufdff\ufe10-\ufe1f\ufe30-\ufefe\uff00-\uffef]+")
_WORD_1 = re.compile(rf"\w\w+|[{CJK}]")
_LETTER, _BLANKLESS = r"\p{L}\p{N}_", r"[\p{LB=SA}&&\p{L}]"  # SA: of Thai and its like
_CLUSTERS = rf"(?:{_BLANKLESS}\p{{M}}*)+"
_RUN, _ONE = regex.compile(rf"[{_PAIRED}]+|{_CLUSTERS}", regex.V1), regex.compile(r".[\p{M}\uff9e\uff9f]*", regex.DOTALL)
_WORD = regex.compile(rf"[{_LETTER}][{_LETTER}\p{{M}}]+|[{_PAIRED}]|{_BLANKLESS}", regex.V1)
_PLACE = regex.compile(
    rf"((?:[{_PAIRED}][\p{{M}}\uff9e\uff9f]*)+|{_CLUSTERS})|(?:(?!{_BLANKLESS})[{_LETTER}--[{_PAIRED}]][\p{{M}}\p{{Cf}}]*)+", regex.V1
)
_AS_IT_IS = re.compile(  # most words; looked at first, as it is quick
    "[a-z0-9\u00df-\u00f6\u00f8-\u024f\u03ac-\u03ce\u0430-\u0481\u048a-\u052f]{2,}|[\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3]{2}"
)
PAIRED, JOINS = 1, 2


class Rules(NamedTuple):
    """One version: by code point PAIRED, JOINS, both or 0; and the words of what stands between blanks, in lower case."""

    kinds: NDArray[np.uint8]
    words: Callable[[str], list[str]]


def plain(text: str) -> str:
    """The text as rules 2 read it, if it is in lower case."""
    text = _FORMS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), _IGNORED.sub("", text))
    return unicodedata.normalize("NFC", text).replace("i\u0307", "i")  # of the Turkish İ


def places(text: str) -> Iterator[tuple[int, int, bool]]:
    """Where the words of a text are, by rules 2, if not all are: the ranges of characters in order, and whether each is a pair, which overlaps the next."""
    for found in _PLACE.finditer(text):
        start, stop = found.span()
        if not found[1]:
            yield start, stop, False
        else:
            starts = [one.start() for one in _ONE.finditer(text, start, stop)]
            yield from ((low, high, True) for low, high in zip(starts, [*starts[2:], stop], strict=False))


def _words(text: str) -> list[str]:
    """One of ASCII may be too short: that is for `Vocabulary` to see."""
    return [text] if text.isascii() or _AS_IT_IS.fullmatch(text) else _WORD.findall(_RUN.sub(_in_pairs, plain(text)))


def _in_pairs(run: regex.Match[str]) -> str:
    ones = _ONE.findall(run[0])
    return " ".join(["", *(a + b for a, b in pairwise(ones)), ""]) if len(ones) > 1 else f" {run[0]} "


def _words_1(text: str) -> list[str]:
    return [text] if text.isascii() or (len(text) > 1 and text.isalnum()) else _WORD_1.findall(text)


def _kinds(paired: str, joining: str = "") -> NDArray[np.uint8]:
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    for ranges, kind in ((paired, PAIRED), (joining, JOINS)):
        for low, high in re.findall("(.)-(.)", ranges):
            kinds[ord(low) : ord(high) + 1] |= kind
    return kinds


VERSIONS = {1: Rules(_kinds(CJK), _words_1), RULES: Rules(_kinds(_PAIRED, _JOINING), _words)}
