"""Reads back the answers that people downloaded from packages: JSON lines under a head that names the package by its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydense.errors import InputError
from raydense.storage import Place

UNSURE = -1
_DOWNLOADED = "give the file as it was downloaded"
_DISPUTED = "give lines as disputed.jsonl has them"


@dataclass(frozen=True)
class AnnotatorAnswer:
    """One person's answer for the pair `pair` (query id and passage id): relevance 1, 0, or -1 for unsure."""

    package: str
    pair: tuple[str, str]
    relevance: int
    annotator: str
    where: str


def read_answers(paths: list[str], packages: dict[str, str], others: dict[str, str]) -> list[AnnotatorAnswer]:
    """The answers of files, or of the `.jsonl` files of folders.

    `packages` gives the name of a package by its fingerprint, and `others` that of packages that are not expected here, with what they
    are. InputError, with file and line, on a line that is no answer, on answers for another package, and on two answers of one person
    for one pair.
    """
    found: dict[tuple[str, str, str], AnnotatorAnswer] = {}
    for path in _files(paths):
        for answer in _answers(path, packages, others):
            key = (answer.annotator, *answer.pair)
            if key in found:
                what = f"a second answer of {answer.annotator!r} for query {answer.pair[0]!r} and passage {answer.pair[1]!r}"
                raise InputError(f"{what} (the first is at {found[key].where})", answer.where, "keep one")
            found[key] = answer
    return list(found.values())


def read_final(path: str) -> dict[tuple[str, str], tuple[int, str]]:
    """Decisions by pair, with where each is: lines of `disputed.jsonl` with `relevance` 0 or 1; lines whose `relevance` is null decide nothing.

    InputError, with file and line, on a bad line and on a pair that is decided twice.
    """
    decided: dict[tuple[str, str], tuple[int, str]] = {}
    for file in _files([path]):
        for where, line in _lines(file, _DISPUTED):
            pair, relevance = _pair(line, where, _DISPUTED), _relevance(line, where)
            if pair in decided:
                raise InputError(f"decides {pair[0]!r} and {pair[1]!r} again (first at {decided[pair][1]})", where, "keep one")
            if relevance != UNSURE:
                decided[pair] = relevance, where
    return decided


def _files(paths: list[str]) -> Iterator[Path]:
    for path in paths:
        place = Place.of(path)
        if not place.exists():
            raise InputError("no such file or folder", path, "check the path")
        here = place.local()
        files = sorted(here.glob("*.jsonl")) if here.is_dir() else [here]
        if not files:
            raise InputError("has no .jsonl file", path, "give the files that were downloaded from the packages")
        yield from files


def _answers(path: Path, packages: dict[str, str], others: dict[str, str]) -> Iterator[AnnotatorAnswer]:
    lines = _lines(path)
    where, head = next(lines, (str(path), {}))
    fingerprint = str(head.get("fingerprint", ""))
    if fingerprint not in packages:
        if fingerprint in others:
            raise InputError(f"has answers for {others[fingerprint]}", where, "give judgements as --judgements, and reviews as --reviews")
        what = "names no package" if not fingerprint else f"has answers for another package ({head.get('package')}, {fingerprint[:8]})"
        raise InputError(what, where, "give what was downloaded from a page of this annotation")
    count = 0
    for where, line in lines:
        count += 1
        annotator = line.get("annotator")
        if not isinstance(annotator, str) or not annotator:
            raise InputError("has no annotator", where, _DOWNLOADED)
        yield AnnotatorAnswer(packages[fingerprint], _pair(line, where), _relevance(line, where), annotator, where)
    if head.get("answers", count) != count:
        raise InputError(f"says that it has {head['answers']} answers, and has {count}", path, _DOWNLOADED)


def _lines(path: Path, fix: str = _DOWNLOADED) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", errors="replace") as stream:  # people edit these files
        for number, text in enumerate(stream, 1):
            if not text.strip():
                continue
            where = f"{path}:{number}"
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                raise InputError("is not a line of JSON", where, fix) from None
            if not isinstance(line, dict):
                raise InputError("is not an object of JSON", where, fix)
            yield where, line


def _pair(line: dict[str, Any], where: str, fix: str = _DOWNLOADED) -> tuple[str, str]:
    query, passage = line.get("query_id"), line.get("passage_id")
    if not isinstance(query, str) or not isinstance(passage, str):
        raise InputError("names no query_id and passage_id", where, fix)
    return query, passage


def _relevance(line: dict[str, Any], where: str) -> int:
    value = line.get("relevance", "missing")
    if value is None:
        return UNSURE
    if isinstance(value, bool) or value not in (0, 1):
        raise InputError(f"relevance is {value!r}", where, "it must be 1, 0, or null for unsure")
    return int(value)
