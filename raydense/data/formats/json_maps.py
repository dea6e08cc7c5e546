"""Reads a file that is one large JSON object, such as a map of millions of ids, in pieces: fast, and exact about the first fault.

A piece is cut after a value and parsed as an object of its own. Where that fails, it is read pair by pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from raydense.data.formats import lines
from raydense.data.formats.lines import Where
from raydense.errors import InputError

_OPENING, _BETWEEN, _COLON = re.compile(r"\ufeff?\s*\{"), re.compile(r"[\s,]*"), re.compile(r"\s*:\s*")
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
_FIX = "give one JSON object"
Pairs = list[tuple[str, Any]]


def json_pairs(path: Path) -> Iterator[tuple[Pairs, Where]]:
    """The keys and values of the object in a file, in order, some MB at a time; an object in it is a tuple of pairs.

    Each list comes with a function from a pair's place in it to the `path:line` where the pair begins. InputError on a file that
    is no JSON object, or is cut short, and on half of a surrogate pair.
    """
    text, line, opening = "", 1, True
    for piece, last in lines.pieces(path):
        text += piece
        if opening:
            found = _OPENING.match(text)
            if not found and not last and not text.strip():
                continue
            if not found:
                raise InputError("empty file" if not text.strip() else "not a JSON object", path, _FIX)
            opening, text, line = False, text[found.end() :], 1 + found.group().count("\n")
        pairs, used = _parsed(text, last)
        if pairs:
            at = partial(_line_of, text[:used], line, path)
            if _HALVES.search(text, 0, used):
                _refuse_halves(pairs, at)
            yield pairs, at
        text, line = text[used:], line + text.count("\n", 0, used)
        if text.strip() != "}" if last else len(text) > lines.MOST_BLOCKS * lines.BLOCK_BYTES:
            raise InputError(f"not JSON ({_fault(text)})", f"{path}:{line}", _FIX)


def _refuse_halves(pairs: Pairs, at: Where) -> None:
    wrong = next((row for row, pair in enumerate(pairs) if not lines.is_unicode(json.dumps(pair, ensure_ascii=False))), None)
    if wrong is not None:
        raise InputError("holds half of a surrogate pair", at(wrong), "correct it")


def _parsed(text: str, last: bool) -> tuple[Pairs, int]:
    """The complete pairs that a text begins with, and the characters that they take."""
    end = max(text.rfind("],"), 0) or text.rfind('",')
    if not last and end > 0:
        try:
            return list(_DECODER.decode("{" + text[: end + 1].lstrip(", \n\t\r") + "}")), end + 1
        except (ValueError, RecursionError):
            pass  # the cut is in a string, or it is no JSON: pair by pair tells
    pairs, starts = _one_by_one(text)
    return pairs, starts[-1]


def _one_by_one(text: str) -> tuple[Pairs, list[int]]:
    """The complete pairs that a text begins with, and where each begins; the last start is where the next pair would."""
    pairs: Pairs = []
    starts = [0]
    while True:
        try:
            between = _BETWEEN.match(text, starts[-1])
            starts[-1] = between.end() if between else starts[-1]
            key, at = _DECODER.raw_decode(text, starts[-1])
            colon = _COLON.match(text, at)
            if not isinstance(key, str) or not colon:
                return pairs, starts
            value, at = _DECODER.raw_decode(text, colon.end())
            if at == len(text):  # a number may go on in the next piece
                return pairs, starts
        except (ValueError, RecursionError):
            return pairs, starts
        pairs.append((key, value))
        starts.append(at)


def _line_of(text: str, line: int, path: Path, row: int) -> str:
    start = _one_by_one(text + " ")[1][row]
    return f"{path}:{line + text.count(chr(10), 0, start)}"


def _fault(text: str) -> str:
    try:
        _DECODER.decode("{" + text.lstrip(", \n"))
        return "more after its end"
    except ValueError as error:
        return error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    except RecursionError:
        return "nested too deep"
