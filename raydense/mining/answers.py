"""Which candidates hold an answer of their question: in question answering such a passage is no negative (RocketQA's scripts for NQ)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.answers import RegexMatchers, answers_of, normal_tokens, token_matcher
from raydense.data.lookup import IdLookup
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import read_table
from raydense.mining.negatives import Flags, first_of_each

Match = Literal["token", "regex"]
_AT_ONCE = 16_384  # candidates, whose texts are in memory together


class HeldAnswers:
    """Looks for the answers of `queries` in passages of `store`, in title and text; InputError where no query has an answer."""

    def __init__(self, queries: str, store: PassageStore, match: Match) -> None:
        answered = answers_of(read_table(queries, "queries"), queries, "without_answers")
        self._store, self._match, self._regexes = store, match, RegexMatchers(doubt=True)
        self._looked_at = 0
        self._lookup, self._answers = IdLookup(answered["query_id"].combine_chunks()), answered["answers"].combine_chunks()

    def first_without_answers(self, ids: pa.Array, query: Rows, row: Rows, key: NDArray[np.generic], count: int) -> tuple[Rows, int]:
        """As `negatives.first_of_each` of those passages that hold no answer of `ids[query]`; and how many that do were found.

        A text takes long to look through, so no more of them are than a query needs for its `count`.
        """
        held, looked_at = np.zeros(len(row), dtype=bool), np.zeros(len(row), dtype=bool)
        while True:
            left = np.flatnonzero(~held)
            chosen = left[first_of_each(query[left], key[left], count)]
            fresh = chosen[~looked_at[chosen]]
            if not len(fresh):
                return chosen, int(held.sum())
            held[fresh], looked_at[fresh] = self.held(ids, query[fresh], row[fresh]), True

    def held(self, ids: pa.Array, query: Rows, row: Rows) -> Flags:
        """Whether each passage `row` holds an answer of `ids[query]`, bool [n]; never for a query without answers.

        An expression that is invalid is held by none, and one that was given up by each: such a passage may hold it.
        """
        place = self._lookup.positions(ids)
        matcher = token_matcher if self._match == "token" else self._regexes.matcher
        matchers: dict[int, Callable[[str], bool]] = {
            number: matcher(self._answers[int(place[number])].as_py()) for number in np.unique(query).tolist() if place[number] >= 0
        }
        held, asked = np.zeros(len(row), dtype=bool), np.flatnonzero(place[query] >= 0)
        self._looked_at += len(asked)
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            rows, at = np.unique(row[some], return_inverse=True)
            texts = self._texts(rows)
            held[some] = [matchers[number](texts[text]) for number, text in zip(query[some].tolist(), at.tolist(), strict=True)]
        return held

    def counts(self) -> dict[str, int]:
        """How many passages of this block were looked at, and how many expressions are invalid, and were given up; the next begins anew, whoever makes it."""
        counts = {"looked at": self._looked_at}
        if self._match == "regex":
            counts |= {"invalid": len(self._regexes.invalid), "given up": len(self._regexes.given_up)}
        self._looked_at, self._regexes = 0, RegexMatchers(doubt=True)
        return counts

    def _texts(self, rows: Rows) -> list[str]:
        table = self._store.take(rows, ["title", "text"])
        both = zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)
        if self._match == "token":
            return [normal_tokens(title) + normal_tokens(text) for title, text in both]
        return [f"{title}\n{text}" for title, text in both]
