"""In which rank of a run does a passage hold an answer? The measure of open-domain question answering: top-k answer accuracy (DPR, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.answers import RegexMatchers, normal_tokens, token_matcher
from raydense.data.lookup import IdLookup
from raydense.data.store import PassageStore
from raydense.evaluation.metrics import Measured
from raydense.evaluation.settings import AnswerSettings
from raydense.runtime.progress import say

_AT_ONCE = 512  # queries, whose passages of a few ranks are in memory together


def first_answer_ranks(
    hits: list[NDArray[np.int64]],
    matchers: list[Callable[[str], bool]],
    texts: Callable[[NDArray[np.int64]], list[str]],
    step: int = 10,
) -> NDArray[np.int64]:
    """The rank, from 1, of the first passage of each query that holds an answer; 0 where none does. int64 [queries].

    `hits` are the passages' rows in the order of the run. Of each `step` ranks the texts are read, once for all queries that have found no answer
    so far; of `_AT_ONCE` queries together, which bounds the memory.
    """
    ranks = np.zeros(len(hits), dtype=np.int64)
    for first in range(0, len(hits), _AT_ONCE):
        open_, start = [*range(first, min(first + _AT_ONCE, len(hits)))], 0
        while open_ := [query for query in open_ if not ranks[query] and len(hits[query]) > start]:
            window = [hits[query][start : start + step] for query in open_]
            rows, at = np.unique(np.concatenate(window), return_inverse=True)
            read, ends = texts(rows), np.cumsum([len(part) for part in window])
            for query, places in zip(open_, np.split(at, ends[:-1]), strict=True):
                ranks[query] = next((i for i, place in enumerate(places.tolist(), start + 1) if matchers[query](read[place])), 0)
            start += step
    return ranks


class AnswerSearch:
    """Looks for answers in the first passages of each of `query_ids`, block after block of a run; holds a rank for each query."""

    def __init__(self, settings: AnswerSettings, answered: pa.Table, store: PassageStore, run: str) -> None:
        self._settings, self._store, self._run = settings, store, run
        ids = answered["query_id"].combine_chunks()
        self.query_ids, self._lookup, self._met = ids, IdLookup(ids), np.zeros(len(ids), dtype=bool)
        self._regexes = RegexMatchers()
        matcher = token_matcher if settings.match == "token" else self._regexes.matcher
        self._matchers = [matcher(answers) for answers in answered["answers"].to_pylist()]
        self._ranks = np.zeros(len(ids), dtype=np.int64)

    def add(self, run: pa.Table) -> None:
        """Look into the hits of some complete queries, in the order of their ranks."""
        query, rank = self._lookup.positions_of_rows(run["query_id"]), run["rank"].to_numpy()
        self._met[query[query >= 0]] = True
        taken = np.flatnonzero((query >= 0) & (rank <= max(self._settings.k)))
        taken = taken[np.lexsort((rank[taken], query[taken]))]
        rows = self._store.known_rows(run["passage_id"].take(pa.array(taken)), self._run)
        queries, starts = np.unique(query[taken], return_index=True)
        hits = np.split(rows, starts[1:])
        matchers = [self._matchers[number] for number in queries]
        self._ranks[queries] = first_answer_ranks(hits[: len(queries)], matchers, self._texts)

    def _texts(self, rows: NDArray[np.int64]) -> list[str]:
        texts: list[str] = self._store.take(rows, ["text"])["text"].to_pylist()
        return [normal_tokens(text) for text in texts] if self._settings.match == "token" else texts

    def result(self) -> tuple[dict[str, Any], Measured]:
        """Top-k answer accuracy over all queries that have answers, as metrics.json has it; and the same by query."""
        held = {f"top-{k}": ((self._ranks > 0) & (self._ranks <= k)).astype(np.float64) for k in sorted(set(self._settings.k))}
        accuracy = {name: float(np.mean(values)) for name, values in held.items()}
        skipped = {"expressions_given_up": self._regexes.given_up, "expressions_invalid": self._regexes.invalid}
        for why, found in zip(("took too long", "are invalid"), skipped.values(), strict=True):
            if found:
                say(f"evaluate: skipped {len(found):,} answer expressions that {why}, the first is {min(found)!r}")
        queries = {"queries": len(self._ranks), **{name: len(found) for name, found in skipped.items()}}
        return {"match": self._settings.match, "accuracy": accuracy, **queries}, Measured(accuracy, held, int((~self._met).sum()))
