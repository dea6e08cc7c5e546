"""A corpus and queries gathered from training files that carry texts instead of ids: equal texts become one passage.

`TextCorpus` holds all of the texts; `Numbers` is for files that are larger than the corpus that they make.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.formats.intake import Intake
from raydense.data.lookup import hash_strings
from raydense.errors import InputError

_STEP = 8_192
_CHECK_KEY = "to tell for sure"


def text_id(*parts: str) -> str:
    """An id made from texts, the same on every machine."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def lists_of(query: NDArray[np.integer], passage: NDArray[np.integer], queries: int) -> pa.ListArray:
    """The distinct passages of each query 0 .. `queries`-1, in the order of the pairs: lists of int64. `query` and `passage` are int [n]."""
    _, first = np.unique(query.astype(np.int64) << 32 | passage, return_index=True)
    first.sort()
    query, passage = query[first], passage[first]
    ends = np.cumsum(np.bincount(query, minlength=queries))
    rows = passage[np.argsort(query, kind="stable")].astype(np.int64)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), pa.array(rows))


class Numbers:
    """Numbers texts from 0 in the order of their first occurrence; stores two hashes of each, not the text."""

    def __init__(self) -> None:
        self._hash, self._check = np.zeros(0, np.uint64), np.zeros(0, np.uint64)  # of all that came so far, by the first one rising
        self._number = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self._number)

    def of(self, texts: pa.ChunkedArray, where: object) -> tuple[NDArray[np.int32], pa.ChunkedArray]:
        """The number of each text, int32 [n], and the new texts; InputError if two different texts have the same hash."""
        every, check = hash_strings(texts), hash_strings(texts, _CHECK_KEY)
        hashes, first, back = np.unique(every, return_index=True, return_inverse=True)
        place = np.searchsorted(self._hash, hashes)
        known = np.zeros(len(hashes), dtype=bool)
        known[place < len(self)] = self._hash[place[place < len(self)]] == hashes[place < len(self)]
        self._refuse_alike(
            np.concatenate([check[first][back], self._check[place[known]]]), np.concatenate([check, check[first[known]]]), where
        )
        numbers, new = np.empty(len(hashes), np.int32), np.flatnonzero(~known)
        rows = np.sort(first[new])
        numbers[known] = self._number[place[known]]
        numbers[new] = len(self) + np.searchsorted(rows, first[new])
        self._number = np.insert(self._number, place[new], numbers[new])
        self._hash = np.insert(self._hash, place[new], hashes[new])
        self._check = np.insert(self._check, place[new], check[first[new]])
        return numbers[back], texts.take(pa.array(rows))

    @staticmethod
    def _refuse_alike(one: NDArray[np.uint64], other: NDArray[np.uint64], where: object) -> None:
        if (one != other).any():
            raise InputError("two of its texts have the same 64-bit hash", where, "change one of them by a blank")


class TextCorpus:
    """Passages and queries of training files, held in memory: JSON with one entry per query is small compared with a corpus."""

    def __init__(self) -> None:
        self.passages: dict[str, tuple[str, str, str]] = {}
        self.queries: dict[str, tuple[str, str]] = {}
        self.answers: dict[str, list[str]] = {}

    def add(self, text: str, at: str, title: str = "", passage_id: str | None = None) -> str:
        """Add a passage and return its id; InputError on an empty text, and on an id that has another text elsewhere."""
        if not text.strip():
            raise InputError("empty text", at, "fill it, or remove the passage")
        name = passage_id if passage_id is not None else text_id(title, text)
        if not name.strip():
            raise InputError("empty passage id", at, "fill it, or leave it out everywhere")
        before = self.passages.setdefault(name, (title, text, at))
        if before[:2] != (title, text):
            raise InputError(f"passage {name!r} has another text than at {before[2]}", at, "make ids unique")
        return name

    def add_query(self, text: str, at: str, query_id: str | None = None, answers: list[str] | None = None) -> str:
        """Add a query and return its id (made from the text if the file has none). Of several lists of answers the first that is not empty counts."""
        if not text.strip():
            raise InputError("empty query", at, "fill it, or remove the line")
        name = query_id if query_id is not None else text_id(text)
        if not name.strip():
            raise InputError("empty query id", at, "fill it")
        before = self.queries.setdefault(name, (text, at))
        if before[0] != text:
            raise InputError(f"query {name!r} has another text than at {before[1]}", at, "make ids unique")
        if answers is not None:
            self.answers[name] = self.answers.get(name) or answers
        return name

    def write(self, intake: Intake, with_corpus: bool = True) -> None:
        """Write the passages (unless the ids are those of another corpus) and the queries."""
        if with_corpus:
            rows = [(name, title, text) for name, (title, text, _) in self.passages.items()]
            schema = pa.schema([(n, pa.string()) for n in ("passage_id", "title", "text")])
            steps = (rows[i : i + _STEP] for i in range(0, len(rows), _STEP))
            tables = (pa.table([list(c) for c in zip(*step, strict=True)], schema=schema) for step in steps)
            places = [at for _, _, at in self.passages.values()]
            intake.corpus((tables, places.__getitem__))
        columns: dict[str, Any] = {"query_id": list(self.queries), "text": [text for text, _ in self.queries.values()]}
        if self.answers:
            columns["answers"] = pa.array([self.answers.get(name, []) for name in self.queries], pa.list_(pa.string()))
        places = [at for _, at in self.queries.values()]
        intake.queries(pa.table(columns), places.__getitem__)
