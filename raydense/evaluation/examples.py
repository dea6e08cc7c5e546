"""Queries worth reading in a report: where a run wins and loses most against the first, with their hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import regex
from markupsafe import Markup, escape
from numpy.typing import NDArray

from raydense.data.answers import expression
from raydense.data.cjk import CJK
from raydense.data.store import PassageStore
from raydense.evaluation.runs import MeasuredQueries, MeasuredRun

SHOWN_HITS = 5
SHOWN_QUERIES = 3
TEXT_LENGTH = 280
_SEARCH_S = 1.0
Marks = list[regex.Pattern[str]]
_WORD = rf"(?![{CJK}])\w"  # a character that a word may go on with


@dataclass(frozen=True)
class Hit:
    """One passage as the report shows it; `relevance` is None where it is not judged."""

    rank: int
    passage_id: str
    relevance: int | None
    text: Markup


@dataclass(frozen=True)
class Hits:
    """The first hits of one run for one query, its value there, and the rank of the first relevant passage (0: none)."""

    run: str
    value: float
    first_relevant: int
    hits: list[Hit]


@dataclass(frozen=True)
class Example:
    """A query with the hits of the runs compared, and one positive."""

    query_id: str
    text: str
    answers: list[str]
    positive_id: str
    positive: Markup
    runs: list[Hits]


def choose(values: NDArray[np.float64], first: NDArray[np.float64] | None) -> list[tuple[str, list[int]]]:
    """Headings with positions of queries: the greatest wins and losses against `first`, or the best and worst without one."""
    gaps = values if first is None else values - first
    order = np.argsort(-gaps, kind="stable")[: len(gaps) - int(np.isnan(gaps).sum())]  # those without a value come last
    best, worst = order[:SHOWN_QUERIES], order[::-1][:SHOWN_QUERIES]
    if first is None:
        return [("Worst", worst[~np.isin(worst, best)].tolist()), ("Best", best.tolist())]
    return [("Greatest wins", best[gaps[best] > 0].tolist()), ("Greatest losses", worst[gaps[worst] < 0].tolist())]


class Reader:
    """Makes examples of queries: texts where the queries and the corpus were given, ids elsewhere."""

    def __init__(self, asked: MeasuredQueries, queries: pa.Table | None, store: PassageStore | None, as_regex: bool) -> None:
        self.asked, self.queries, self.store, self.as_regex = asked, queries, store, as_regex

    def example(self, position: int, runs: Sequence[MeasuredRun], metric: str) -> Example:
        """One query with what each run found."""
        query_id, judged = self.asked.query_ids[position].as_py(), self.asked.grades(position)
        text, answers = self._query(query_id)
        marks = answer_patterns(answers, self.as_regex)
        best = max(judged.items(), key=lambda item: item[1], default=("", 0.0))
        positive_id = best[0] if best[1] >= 1 else ""
        shown = [self._hits(run, position, judged, float(run.measured.per_query[metric][position]), marks) for run in runs]
        positive = self._texts([positive_id], marks)[0] if positive_id else Markup()
        return Example(query_id, text, answers, positive_id, positive, shown)

    def _query(self, query_id: str) -> tuple[str, list[str]]:
        if self.queries is None:
            return "", []
        row = self.queries.filter(pc.equal(self.queries["query_id"], query_id)).slice(0, 1).to_pylist()[0]
        return row["text"], [a for a in row.get("answers") or [] if a and a.strip()]

    def _hits(self, run: MeasuredRun, position: int, judged: dict[str, float], value: float, marks: Marks) -> Hits:
        ids = run.hits(position)["passage_id"].to_pylist()
        first_relevant = next((rank for rank, p in enumerate(ids, 1) if judged.get(p, 0) >= 1), 0)
        texts = self._texts(ids[:SHOWN_HITS], marks)
        found = [(rank, p, judged.get(p), text) for rank, (p, text) in enumerate(zip(ids, texts, strict=False), 1)]
        hits = [Hit(rank, p, None if grade is None else int(grade), text) for rank, p, grade, text in found]
        return Hits(run.name, value, first_relevant, hits)

    def _texts(self, passage_ids: list[str], marks: Marks) -> list[Markup]:
        if self.store is None:
            return [Markup()] * len(passage_ids)
        rows = self.store.rows_of(pa.array(passage_ids, pa.string()))
        texts = dict(zip(rows[rows >= 0].tolist(), self.store.passages(rows[rows >= 0]), strict=True))
        return [cut(texts.get(row, ""), marks) for row in rows.tolist()]


def answer_patterns(answers: list[str], as_regex: bool) -> Marks:
    """What to mark in a text: any of the answers, whole words (but in Chinese, Japanese and Korean), whatever the case.

    Each has a pattern of its own: joined to one, flags within an answer would be refused, and references would mean other groups.
    """
    if as_regex:
        return [pattern for answer in answers if (pattern := expression(answer)) is not None]
    parts = [rf"(?:(?<!{_WORD})|(?=[{CJK}])){regex.escape(a)}(?:(?!{_WORD})|(?<=[{CJK}]))" for a in answers]
    return [regex.compile(part, regex.IGNORECASE) for part in parts]


def _spans(text: str, marks: Marks) -> list[tuple[int, int]]:
    """Where a text matches, rising; what overlaps is one span. A pattern that takes too long marks nothing."""
    found: list[tuple[int, int]] = []
    for pattern in marks:
        try:
            found += [m.span() for m in pattern.finditer(text, timeout=_SEARCH_S) if m.group()]
        except TimeoutError:
            continue
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def cut(text: str, marks: Marks) -> Markup:
    """About 280 characters of a text, escaped: from its beginning, or around the first answer; answers are marked."""
    found = _spans(text, marks)
    start = max(0, found[0][0] - TEXT_LENGTH // 2) if found and found[0][1] > TEXT_LENGTH else 0
    stop = start + TEXT_LENGTH
    parts, at = [Markup("… " if start else "")], start
    for a, b in found:
        if at <= a < stop:
            parts += [escape(text[at:a]), Markup("<mark>{}</mark>").format(text[a:b])]
            at = b
    return Markup("").join([*parts, escape(text[at : max(at, stop)]), Markup("…" if stop < len(text) else "")])
