"""A corpus and queries gathered from training files that carry texts instead of ids: equal texts become one passage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from raydense.data.formats.intake import Intake
from raydense.errors import InputError

_STEP = 8_192


def text_id(*parts: str) -> str:
    """An id made from texts: the same wherever it is made."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class TextCorpus:
    """Passages and queries of training files; holds them in memory, as such files are small beside a corpus."""

    def __init__(self) -> None:
        self.passages: dict[str, tuple[str, str, str]] = {}
        self.queries: dict[str, tuple[str, str]] = {}
        self.answers: dict[str, list[str]] = {}

    def add(self, text: str, at: str, title: str = "", passage_id: str | None = None) -> str:
        """Take a passage, return its id; InputError on an empty text, and on an id that has another text elsewhere."""
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
        """Take a query, return its id (made from the text where the file has none)."""
        if not text.strip():
            raise InputError("empty query", at, "fill it, or remove the line")
        name = query_id if query_id is not None else text_id(text)
        if not name.strip():
            raise InputError("empty query id", at, "fill it")
        before = self.queries.setdefault(name, (text, at))
        if before[0] != text:
            raise InputError(f"query {name!r} has another text than at {before[1]}", at, "make ids unique")
        if answers is not None:
            self.answers.setdefault(name, answers)
        return name

    def add_texts(self, texts: list[str], at: Callable[[int], str]) -> pa.Array:
        """The ids of a column of passages."""
        return pa.array([self._named(self.add, text, row, at) for row, text in enumerate(texts)], pa.string())

    def add_queries(self, texts: list[str], at: Callable[[int], str]) -> pa.Array:
        """The ids of a column of queries."""
        return pa.array([self._named(self.add_query, text, row, at) for row, text in enumerate(texts)], pa.string())

    @staticmethod
    def _named(add: Callable[..., str], text: str, row: int, at: Callable[[int], str]) -> str:
        # the line is looked up only where it is needed: it costs a reading of the file
        return add(text, "") if text.strip() else add(text, at(row))

    def write(self, intake: Intake, with_corpus: bool = True) -> None:
        """Give the passages (unless the ids are of another corpus) and the queries to `intake`."""
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
