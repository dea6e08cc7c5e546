"""report.html of an error analysis: the share of each kind, and examples with the terms that a passage has and lacks; it needs no other file."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from raydense.construction.error_kinds import RULES
from raydense.construction.settings import AnalyseSettings
from raydense.construction.terms import Splitter, Term
from raydense.data.page_template import page_template

if TYPE_CHECKING:
    from raydense.construction.analyse import Sorted

_EXAMPLES = 4  # of each kind
_LENGTH = 700  # characters of a passage


def write_page(
    path: Path,
    settings: AnalyseSettings,
    result: dict[str, Any],
    pairs: list[Sorted],
    query_ids: list[str],
    positives: list[tuple[str, str]],
    splitter: Splitter,
) -> None:
    """Write the page; `positives` are the id and text of the best positive of each of the queries. The same inputs give the same bytes."""
    best = dict(zip(query_ids, positives, strict=True))
    meanings = {kind: (rule.__doc__ or "").strip() for kind, rule in RULES.items()}
    kinds = [
        {"name": kind, **found, "meaning": meanings.get(kind, "No rule fires."), "examples": _examples(kind, pairs, best, splitter)}
        for kind, found in result["kinds"].items()
    ]
    template = page_template("raydense.construction", "analysis.html.j2")
    shown = template.render(run=settings.run, kinds=kinds, **{k: v for k, v in result.items() if k != "kinds"})
    path.write_text(shown, encoding="utf-8")


def _examples(kind: str, pairs: list[Sorted], best: dict[str, tuple[str, str]], splitter: Splitter) -> list[dict[str, Any]]:
    """The first pairs of a kind, of different queries as far as there are."""
    mine = [one for one in pairs if one.kind == kind]
    first: dict[str, Sorted] = {}
    for one in mine:
        first.setdefault(one.query_id, one)
    chosen = islice(chain(first.values(), (one for one in mine if one is not first[one.query_id])), _EXAMPLES)
    return [_example(one, *best[one.query_id], splitter) for one in chosen]


def _example(one: Sorted, positive_id: str, positive: str, splitter: Splitter) -> dict[str, Any]:
    query = one.pair.query
    words = {term.word for term in query.terms}
    spans = [("mark", term.start, term.end) for term in one.pair.present] + [("del", term.start, term.end) for term in one.pair.missing]
    return {
        "query_id": one.query_id,
        "query": _marked(query.text, spans, len(query.text)),
        "passage_id": one.passage_id,
        "rank": one.rank,
        "passage": _marked(one.pair.passage.text, _shared(one.pair.passage.terms, words), _LENGTH),
        "evidence": one.evidence,
        "positive_id": positive_id,
        "positive": _marked(positive, _shared(splitter.terms(positive), words), _LENGTH),
    }


def _shared(terms: list[Term], words: set[str]) -> list[tuple[str, int, int]]:
    return [("mark", term.start, term.end) for term in terms if term.word in words]


def _marked(text: str, spans: list[tuple[str, int, int]], length: int) -> Markup:
    """The beginning of a text, escaped, with each character of the spans in an element of their name; the first span of a character counts."""
    shown, tags = text[:length], [""] * min(length, len(text))
    for tag, start, end in reversed(spans):
        tags[start:end] = [tag] * len(tags[start:end])
    parts, at = [], 0
    while at < len(shown):
        end = next((other for other in range(at, len(shown)) if tags[other] != tags[at]), len(shown))
        piece = escape(shown[at:end])
        parts.append(Markup("<{0}>{1}</{0}>").format(Markup(tags[at]), piece) if tags[at] else piece)
        at = end
    return Markup("").join([*parts, "…" if length < len(text) else ""])
