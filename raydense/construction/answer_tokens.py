"""The tokens by which answers and paragraphs are compared: characters for Chinese, words for other languages."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal

import numpy as np
import regex
from numpy.typing import NDArray

from raydense.data.cjk import CJK

Unit = Literal["characters", "words"]

# in Hindi or Thai, vowels are marks, of which \w has none; the marks that follow a sign to make it an emoji are none
_NO_WORD = regex.compile(r"(?V1)[^\p{L}\p{N}[\p{Mn}\p{Mc}--[\ufe00-\ufe0f]]]+")
_CJK = regex.compile(f"[{CJK}]")


def unit_of(texts: Iterable[str]) -> Unit:
    """Characters where most letters of the texts are Chinese, Japanese or Korean; else words."""
    cjk = letters = 0
    for text in texts:
        cjk += len(_CJK.findall(text))
        letters += len(_NO_WORD.sub("", text))
    return "characters" if 2 * cjk > letters else "words"


class AnswerTokens:
    """Turns texts into numbers of tokens, the same for equal tokens, in lower case; neither white space nor punctuation is a token."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> NDArray[np.uint32]:
        """The tokens of a text, uint32 [n]; full-width letters are as the half-width ones (NFKC)."""
        plain = unicodedata.normalize("NFKC", text).casefold()
        if self.unit == "characters":
            return np.frombuffer(_NO_WORD.sub("", plain).encode("utf-32-le", "surrogatepass"), np.uint32)
        numbers = self._numbers
        return np.array([numbers.setdefault(word, len(numbers)) for word in _NO_WORD.split(plain) if word], np.uint32)

    def length(self, text: str) -> int:
        """The length of a text in this unit, as the length of a passage is counted: characters with punctuation, or words."""
        return len(text) if self.unit == "characters" else len(text.split())
