"""The report that `overlap` writes: counts as DuReader-retrieval gives them, similarities, other thresholds, pairs to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydense.construction.evaluation_queries import EvaluationQueries, Questions, Texts
from raydense.construction.settings import OverlapSettings
from raydense.construction.similar import CandidatePairs, similar_pairs
from raydense.data.report_page import bars, shown, table, write_page
from raydense.data.store import Rows

BINS, SAMPLE = 20, 15
THRESHOLDS = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95]


def overlap_line(counts: dict[str, Any]) -> str:
    """The sentence of DuReader-retrieval, section 2.3, with these counts."""
    share = 100 * counts["overlapping"] / counts["asked"]
    names = " and ".join(counts["splits"])
    return f"{counts['overlapping']:,} queries accounting for {share:.2f}% of the {names} queries are similar to {counts['removed']:,} training queries"


def write_report(
    path: Path,
    settings: OverlapSettings,
    counts: dict[str, Any],
    asked: EvaluationQueries,
    distinct: Questions,
    found: CandidatePairs,
    texts: Texts,
    own: Rows,
) -> None:
    """Write the page, as Markdown. `found` are the candidates of another text, `own` the number of each asked query's text or -1."""
    parts = [_counts(settings, counts), _same_text(asked, distinct, own)]
    if settings.threshold is not None:
        parts += [_histogram(found, len(asked.questions)), _thresholds(settings.threshold, own, found, texts, counts)]
        parts += [_around(settings.threshold, asked, distinct, found)]
    write_page(path, *parts)


def _counts(settings: OverlapSettings, counts: dict[str, Any]) -> Iterator[str]:
    yield f"# Similar queries\n\n{overlap_line(counts)}.\n"
    by = f"a similarity above {settings.threshold}, or the same text" if settings.model else "the same text"
    yield f"Similar is a pair of {by}. Texts are the same if only case, the length of white space, blanks before punctuation and the width of characters differ.\n"
    rows = {
        "training queries": counts["train"],
        "removed": counts["removed"],
        "removed, of the same text": counts["removed_same_text"],
        "kept": counts["kept"],
        "similar pairs": counts["pairs"],
    }
    if settings.model:
        rows[f"queries whose {settings.depth} candidates are all similar: a greater depth may find more"] = counts["cut"]
    yield from table(("", "count"), ((name, f"{count:,}") for name, count in rows.items()))
    yield ""
    splits = counts["splits"].items()
    yield from table(
        ("set", "queries", "overlap", "others", "share"),
        ((name, *(f"{of[key]:,}" for key in of), f"{100 * of['overlap'] / of['queries']:.2f}%") for name, of in splits),
    )


def _same_text(asked: EvaluationQueries, distinct: Questions, own: Rows) -> Iterator[str]:
    at = np.flatnonzero(own >= 0)[:SAMPLE]
    yield f"\n## The same text\n\nThe first {SAMPLE}, or all where there are fewer.\n"
    yield from _lines(asked, distinct, CandidatePairs(at, own[at], np.ones(len(at))))


def _histogram(found: CandidatePairs, queries: int) -> Iterator[str]:
    yield "\n## Similarities\n\nOf the candidates of another text; and of each query to its most similar one.\n"
    highest = np.full(queries, -np.inf)
    np.maximum.at(highest, found.asked, found.similarity)
    each, most = _binned(found.similarity), _binned(highest[np.isfinite(highest)])
    columns = zip(range(BINS), each, most, bars(most), strict=True)
    yield from table(
        ("similarity", "candidates", "queries", ""),
        ((f"{i / BINS:.2f} to {(i + 1) / BINS:.2f}", f"{all_:,}", f"{one:,}", bar) for i, all_, one, bar in columns if all_),
    )


def _binned(similarity: NDArray[np.float64]) -> list[int]:
    """Counts in bins of equal width; a negative cosine counts in the first."""
    bins = np.clip(np.floor(similarity * BINS), 0, BINS - 1).astype(np.int64)
    counts: list[int] = np.bincount(bins, minlength=BINS).tolist()
    return counts


def _thresholds(threshold: float, own: Rows, found: CandidatePairs, texts: Texts, counts: dict[str, Any]) -> Iterator[str]:
    yield "\n## At other thresholds\n"
    rows = []
    for at in sorted({*THRESHOLDS, threshold}):
        pairs = similar_pairs(own, found, texts, at)
        removed, hit = len(pairs.removed), len(pairs.hit)
        rows.append(
            (f"{at:g}", f"{removed:,}", f"{100 * removed / counts['train']:.2f}%", f"{hit:,}", f"{100 * hit / counts['asked']:.2f}%")
        )
    yield from table(("above", "training queries removed", "share", "queries that overlap", "share"), rows)


def _around(threshold: float, asked: EvaluationQueries, distinct: Questions, found: CandidatePairs) -> Iterator[str]:
    yield f"\n## Around the threshold\n\nThe {SAMPLE} pairs next to {threshold} on each side, or all where there are fewer."
    order = np.lexsort((found.text, found.asked, -found.similarity))
    ordered = CandidatePairs(found.asked[order], found.text[order], found.similarity[order])
    cut = int((found.similarity > threshold).sum())
    for title, part in (("Above: removed", slice(max(0, cut - SAMPLE), cut)), ("Below: kept", slice(cut, cut + SAMPLE))):
        yield f"\n### {title}\n"
        yield from _lines(asked, distinct, CandidatePairs(ordered.asked[part], ordered.text[part], ordered.similarity[part]))


def _lines(asked: EvaluationQueries, distinct: Questions, chosen: CandidatePairs) -> Iterator[str]:
    one, other = asked.questions.take(chosen.asked), distinct.take(chosen.text)
    names = [asked.names[split] for split in asked.split[chosen.asked].tolist()]
    columns = (chosen.similarity.tolist(), names, one.ids, one.texts, other.ids, other.texts)
    for similarity, name, *words in zip(*columns, strict=True):
        query_id, text, train_id, train_text = (word.as_py() for word in words)
        yield f"- {similarity:.3f}: {name} {query_id}, {shown(text)} | train {train_id}, {shown(train_text)}"
