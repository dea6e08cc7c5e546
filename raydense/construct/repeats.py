"""Finds a repeated id in a stream of ids: 16 bytes an id are held, its hash and where it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.formats.files import opened
from raydense.data.formats.lines import json_object
from raydense.data.store import hash_strings
from raydense.errors import InputError


class Repeats:
    """Takes the ids of questions, some thousand at a time; InputError for one that came before.

    Two different ids with the same 64-bit hash are told apart by reading the earlier line again.
    """

    def __init__(self) -> None:
        self._hash, self._place = np.zeros(0, np.uint64), np.zeros(0, np.int64)  # by the hash rising
        self._files: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._hash)

    def add(self, where: dict[str, str]) -> None:
        """Take the ids, each with its `file:line`; InputError that names both lines of the first one that came in an earlier call."""
        if not where:
            return
        hashes = hash_strings(pa.array(where.keys(), pa.string()))
        at = np.searchsorted(self._hash, hashes)
        known = np.zeros(len(hashes), dtype=bool)
        known[at < len(self)] = self._hash[at[at < len(self)]] == hashes[at < len(self)]
        if known.any():
            found = list(where.items())
            for i in np.flatnonzero(known):
                self._refuse(*found[i], int(self._place[at[i]]))
        every = np.concatenate([self._hash, hashes])
        order = np.argsort(every, kind="stable")  # which merges what is sorted already
        self._hash, self._place = every[order], np.concatenate([self._place, self._places(where)])[order]

    def _places(self, where: dict[str, str]) -> NDArray[np.int64]:
        """Each `file:line` as one number: the file's in the upper 24 bits, the line in the lower 40."""
        split = [place.rpartition(":") for place in where.values()]
        return np.array([self._files.setdefault(file, len(self._files)) << 40 | int(line) for file, _, line in split], np.int64)

    def _refuse(self, name: str, at: str, earlier: int) -> None:
        """InputError if the line at `earlier` has the id `name`, not just its hash."""
        path, line = list(self._files)[earlier >> 40], earlier & (1 << 40) - 1
        entry = json_object(_line(Path(path), line), f"{path}:{line}")
        if name in (str(entry.get("question_id")), str(entry.get("id"))):
            raise InputError(f"question_id {name!r} is repeated (first at {path}:{line})", at, "make ids unique")


def _line(path: Path, number: int) -> str:
    with opened(path) as stream:
        for _ in range(number - 1):
            stream.readline()
        return stream.readline().decode("utf-8").lstrip("\ufeff")
