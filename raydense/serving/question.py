"""A request over HTTP, validated like settings: one clear line for the first fault."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import Field, StrictInt, model_validator

from raydense.errors import InputError
from raydense.settings import BaseSettings, setting

_EXAMPLE = 'send {"queries": ["..."], "k": 10}'
LONGEST = 10_000  # characters of a query
Text = Annotated[str, Field(min_length=1, max_length=LONGEST)]


class Question(BaseSettings):
    """Queries, and the number of passages wanted for each."""

    queries: list[Text] | None = setting(None, "the queries", min_length=1)
    query: Text | None = setting(None, "one query, in place of queries")
    k: StrictInt = setting(10, "passages of each query, at most 1,000", ge=1, le=1_000)
    texts: bool = setting(False, "whether to return the title and text of each passage, if the server has the corpus")
    each: bool = setting(False, "whether to return the hits of each index too, where the server fuses those of several")

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if (self.queries is None) == (self.query is None):
            raise ValueError(f"give either queries or query: {_EXAMPLE}")
        return self

    @property
    def asked(self) -> list[str]:
        """The queries."""
        return self.queries or [str(self.query)]

    def check(self, max_queries: int, max_hits: int, depth: int = 0) -> None:
        """InputError where a query is blank, or it has more queries, or more passages of all of them, than a request may.

        `depth`: how many passages of each query a re-ranker scores, whatever `k` is.
        """
        queries = len(self.asked)
        if any(not query.strip() for query in self.asked):
            raise InputError("a query is blank", "queries", "write some words")
        if queries > max_queries:
            raise InputError(f"{queries:,} queries, and a request may have {max_queries:,}", "queries", "send several requests")
        if self.k < depth and queries * depth > max_hits:
            what = f"{queries:,} queries of which {depth:,} passages each are re-ranked, and a request may ask for {max_hits:,} passages"
            raise InputError(what, "queries", "send several requests")
        if queries * self.k > max_hits:
            what = f"{queries:,} queries of {self.k:,} passages, and a request may ask for {max_hits:,} passages"
            raise InputError(what, "k", "ask for fewer, or send several requests")

    @classmethod
    def parse(cls, body: bytes) -> Question:
        """The question in a request's body; InputError where it is none."""
        return cls.read(parsed(body, _EXAMPLE))


def parsed(body: bytes, example: str) -> dict[str, Any]:
    """The JSON object in a request's body; InputError, which shows the example, where it is none."""
    try:
        given = json.loads(body)
    except ValueError as error:
        raise InputError(f"no JSON ({error})", "body", example) from None
    except RecursionError:
        raise InputError("JSON nested too deeply", "body", example) from None
    if not isinstance(given, dict):
        raise InputError("no JSON object", "body", example)
    return given
