"""What is hit in place of a character: a neighbour on the keyboard, or, in Chinese, one that sounds or looks alike; and where a text's terms are."""

from __future__ import annotations

import re
from functools import cache

from raydense.data.cjk import CJK

_ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")  # each row is half a key to the right of the one above
_CJK = re.compile(f"[{CJK}]")
_TERM = re.compile(rf"[{CJK}]{{1,2}}|[^\s{CJK}]+")
_COMMON = (0xB0, 0xD7)  # the first bytes of the 3,755 common characters of GB 2312, in the order of their pinyin


def is_cjk(character: str) -> bool:
    """Whether a character is Chinese, Japanese or Korean."""
    return _CJK.match(character) is not None


def terms_of(text: str) -> list[tuple[int, int]]:
    """Where each term of a text begins and ends: what stands between white space, with its punctuation; in runs of Chinese, Japanese and Korean two characters.

    Most Chinese words have two characters. What has no letter or digit is no term.
    """
    return [match.span() for match in _TERM.finditer(text) if any(map(str.isalnum, match.group()))]


def typo(character: str, way: float, which: float, may_vanish: bool = True) -> str:
    """What is typed in place of a letter or digit; `way` and `which`, in [0, 1), decide.

    A character of Chinese, Japanese or Korean is replaced by its `neighbours`. Any other is, with equal chance, replaced by a neighbour on a QWERTY
    keyboard, in its case, doubled, or left out; doubled instead where there is no neighbour, or where it may not vanish.
    """
    if is_cjk(character):
        near = neighbours(character)
        return near[int(which * len(near))]
    hit = keys_around(character.lower())
    if way < 1 / 3 and hit:
        key = hit[int(which * len(hit))]
        return key.upper() if character.isupper() else key
    return "" if way >= 2 / 3 and may_vanish else character * 2


@cache
def keys_around(key: str) -> str:
    """The keys that touch one of the same row or the rows above and below, on a QWERTY keyboard; "" for a key that is not there."""
    row = next((number for number, keys in enumerate(_ROWS) if key in keys), None)
    if row is None:
        return ""
    at = _ROWS[row].index(key)
    touching = [(row, at - 1), (row, at + 1), (row - 1, at), (row - 1, at + 1), (row + 1, at - 1), (row + 1, at)]
    found = [_ROWS[r][a] for r, a in touching if 0 <= r < len(_ROWS) and 0 <= a < len(_ROWS[r])]
    return "".join(other for other in found if other.isdigit() == key.isdigit())


@cache
def neighbours(character: str, reach: int = 1) -> str:
    """The `reach` characters before and after one of Chinese, Japanese or Korean, in an order where they sound or look alike.

    GB 2312 orders its common characters by pinyin, so that neighbours are mostly homophones, what a pinyin input method confuses; its other
    characters, as Unicode those that GB 2312 lacks, by radical. Kana and Hangul stand by sound in Unicode.
    """
    steps = [step for step in range(-reach, reach + 1) if step]
    near = {_decoded(code) for code in _codes_around(character, steps)}
    if not near:
        near = {other for other in (chr(ord(character) + step) for step in steps) if is_cjk(other) and other.isalnum()}
    return "".join(sorted(near)) or character


def _codes_around(character: str, steps: list[int]) -> list[tuple[int, int]]:
    """The codes around an ideograph of GB 2312, in its part of that standard."""
    try:
        code = tuple(character.encode("gb2312"))
    except UnicodeEncodeError:
        return []
    if len(code) != 2 or code[0] < _COMMON[0]:  # kana are in GB 2312, too, in Unicode's order
        return []
    number = code[0] * 94 + code[1] - 0xA1
    near = [divmod(number + step, 94) for step in steps]
    return [(high, low + 0xA1) for high, low in near if high >= _COMMON[0] and (high <= _COMMON[1]) == (code[0] <= _COMMON[1])]


def _decoded(code: tuple[int, int]) -> str:
    try:
        return bytes(code).decode("gb2312")
    except UnicodeDecodeError:
        return ""
