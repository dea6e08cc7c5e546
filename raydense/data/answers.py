"""Does a text hold an answer? By its tokens, as DPR has it (section 5.1), or as a regular expression."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import regex

from raydense.data.cjk import CJK
from raydense.errors import InputError

_FIRST, _MIDDLE, _LAST = "\u1100-\u1112", "\u1161-\u1175", "\u11a8-\u11c2"  # what a syllable of Hangul is in Unicode NFD
_RUN = rf"[[\p{{L}}\p{{N}}\p{{M}}]--[{CJK}{_FIRST}{_MIDDLE}{_LAST}]]+"
_ONE_OF_CJK = rf"(?:[{CJK}]|[{_FIRST}][{_MIDDLE}][{_LAST}]?)\p{{M}}*"
_TOKEN = regex.compile(rf"{_RUN}|{_ONE_OF_CJK}|[^\p{{Z}}\p{{C}}]", regex.V1)
_GAP = "\n"
_SEARCH_S = 1.0


def normal_tokens(text: str) -> str:
    """The tokens of a text, each between two line feeds: runs of letters, digits and marks, or single other signs, as DPR's.

    A character of Chinese, Japanese or Korean is a token of its own: DPR takes a whole clause for one, in which no answer is found.
    Unicode NFD and lower case, white space and control characters left out; so a token never holds the line feed.
    """
    tokens = _TOKEN.findall(unicodedata.normalize("NFD", text))
    return _GAP + _GAP.join(tokens).lower() + _GAP if tokens else ""


def token_matcher(answers: list[str]) -> Callable[[str], bool]:
    """Whether the `normal_tokens` of a text have those of one of the answers in sequence. An answer without a token matches nothing."""
    wanted = [tokens for tokens in map(normal_tokens, answers) if tokens]
    return lambda tokens: any(answer in tokens for answer in wanted)


def expression(answer: str) -> regex.Pattern[str] | None:
    """An answer as a regular expression in Unicode NFC; None where it is invalid."""
    try:
        return regex.compile(unicodedata.normalize("NFC", answer), regex.IGNORECASE | regex.MULTILINE | regex.UNICODE)
    except (regex.error, RecursionError):
        return None


@dataclass
class RegexMatchers:
    """Answers as regular expressions (as CuratedTREC has them), with an end to searches that would take for ever.

    Expressions and texts are brought to Unicode NFC, so that an accented letter is one sign in a class as [ée].
    An expression whose search was given up is found in each further text if `doubt`, in none otherwise.
    """

    doubt: bool = False
    given_up: set[str] = field(default_factory=set)
    invalid: set[str] = field(default_factory=set)

    def matcher(self, answers: list[str]) -> Callable[[str], bool]:
        """Whether one of the expressions is found in a text, whatever the case; an invalid one is found in none, as in DPR, and noted."""
        patterns = {answer: expression(answer) for answer in answers if answer.strip()}
        self.invalid |= {answer for answer, pattern in patterns.items() if pattern is None}
        valid = [pattern for pattern in patterns.values() if pattern is not None]
        return lambda text: any(self._found(pattern, unicodedata.normalize("NFC", text)) for pattern in valid)

    def _found(self, pattern: regex.Pattern[str], text: str) -> bool:
        if pattern.pattern in self.given_up:
            return self.doubt
        try:
            return pattern.search(text, timeout=_SEARCH_S) is not None
        except TimeoutError:
            self.given_up.add(pattern.pattern)
            return self.doubt


def answers_of(queries: pa.Table, where: object, setting: str = "answers") -> pa.Table:
    """The queries that have an answer; InputError when none has, where `setting` asks for them."""
    if "answers" in queries.column_names:
        held = [bool(a) and any(x and x.strip() for x in a) for a in queries["answers"].to_pylist()]
        if any(held):
            return queries.filter(pa.array(held))
    raise InputError("no query has an answer", where, f"give queries with answers, or leave {setting} out")
