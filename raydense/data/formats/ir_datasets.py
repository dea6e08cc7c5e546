"""Any data set that the library ir_datasets knows, by its id; the library is an extra, and is imported only here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydense.data.formats.intake import Intake, Passages, without_empty_answers
from raydense.data.formats.records import ExampleRows
from raydense.data.formats.triples import give_id_triples
from raydense.errors import DownloadError, InputError, fixable
from raydense.runtime.progress import say

BY_NAME = True
_STEP = 8_192
_MOST_PAIRS = 50_000_000  # as numbers they take some 50 bytes each
_PAIRS = 1 << 18  # of MS MARCO's 400 million: each step takes as long as there are queries


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise InputError("the package ir_datasets is not installed", "ir_datasets", "pip install ir_datasets") from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        raise InputError(f"ir_datasets knows no data set {name!r}", "input", "see https://ir-datasets.com") from None


def passages(source: Path) -> Passages:
    """The documents of a data set."""
    name = str(source)
    dataset = _load(name)
    if not dataset.has_docs():
        raise InputError("has no documents", name, "give another id")
    return _documents(name, dataset), lambda row: f"{name}, document {row + 1}"


def read(source: Path, intake: Intake) -> None:
    """Import those of documents, queries, qrels and document pairs that the data set has; the split is the last part of its id."""
    name = str(source)
    split = name.rpartition("/")[2]
    dataset = _load(name)
    if intake.store is None and dataset.has_docs():
        intake.corpus(passages(source))
    if dataset.has_queries():
        _read_queries(name, dataset, intake)
    if dataset.has_qrels():
        judged = [(q.query_id, q.doc_id, q.relevance) for q in fetched(name, dataset.qrels_iter)]
        table = _table(judged, ["query_id", "passage_id", "relevance"])
        intake.qrels(split, table, lambda row: f"{name}, judgement {row + 1}")
        if drawn := _drawn_grades(dataset):
            _give_drawn(name, judged, drawn, intake)
    if dataset.has_docpairs() and not _too_many_pairs(name, dataset):
        pairs = ((p.query_id, p.doc_id_a, p.doc_id_b) for p in fetched(name, dataset.docpairs_iter))
        give_id_triples(
            split, _tables(pairs, ["query_id", "positive", "negative"], _PAIRS), lambda row: f"{name}, pair {row + 1}", name, intake
        )


def _read_queries(name: str, dataset: Any, intake: Intake) -> None:
    """The queries, with their answers where they have the field, as those of dpr-w100 do."""
    asked = [(q.query_id, q.default_text(), list(getattr(q, "answers", None) or ())) for q in fetched(name, dataset.queries_iter)]
    ids, texts, answers = zip(*asked, strict=True) if asked else ((), (), ())
    columns = [pa.array(ids, pa.string()), pa.array(texts, pa.string()), pa.array(answers, pa.list_(pa.string()))]
    table = without_empty_answers(pa.table(columns, ["query_id", "text", "answers"]))
    intake.queries(table, lambda row: f"{name}, query {row + 1}")


def _too_many_pairs(name: str, dataset: Any) -> bool:
    """Whether the pairs are more than an import takes, by the library's own count; says so."""
    known: dict[str, dict[str, Any]] = dataset.metadata() if hasattr(dataset, "metadata") else {}  # one that a user registers has none
    count = known.get("docpairs", {}).get("count", 0)
    if count > _MOST_PAIRS:
        say(
            f"import {name}: leaves out its {count:,} document pairs, more than {_MOST_PAIRS:,}; cut qidpidtriples, and import it as msmarco"
        )
    return count > _MOST_PAIRS


def _drawn_grades(dataset: Any) -> dict[int, str]:
    """The grades of qrels that are no judgements but say how a negative was drawn, as those of dpr-w100: `hard`, or `negative` at random."""
    with suppress(NotImplementedError):
        meanings = {grade: meaning.lower() for grade, meaning in dataset.qrels_handler().qrels_defs().items()}
        return {grade: "hard" if "hard" in text else "negative" for grade, text in meanings.items() if "negative sample" in text}
    return {}


def _give_drawn(name: str, judged: list[tuple[str, str, int]], drawn: dict[int, str], intake: Intake) -> None:
    """An example of each query with a positive: with its hard negatives or, where it has none, the others, as of DPR's own files."""
    found: dict[str, dict[str, list[str]]] = {}
    for query_id, passage_id, relevance in judged:
        side = "positive" if relevance > 0 else drawn.get(relevance, "")
        found.setdefault(query_id, {}).setdefault(side, []).append(passage_id)
    rows, split = ExampleRows(), name.rpartition("/")[2]
    for query_id, sides in found.items():
        if "positive" in sides:
            taken = "hard" if "hard" in sides else "negative"
            negatives = sides.get(taken, [])
            rows.add(f"{name}, query {query_id}", query_id, sides["positive"], negatives, sources=[taken] * len(negatives))
    if left := len(found) - len(rows):
        say(f"import examples/{split}: {left:,} of {len(found):,} queries have no positive passage, and are left out")
    if len(rows):
        rows.write_with_negatives(split, intake)


def fetched(name: str, records: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The result of `records()`; DownloadError where the library fails to download, check or unpack it."""
    try:
        yield from records()
    except Exception as error:
        if fixable(error):
            raise
        reason = " ".join(str(error).split())[:200]
        what = f"ir_datasets could not read it ({type(error).__name__}: {reason})"
        raise DownloadError(what, name, "check that this machine can download its files, and run again") from error


def _documents(name: str, dataset: Any) -> Iterator[pa.Table]:
    documents = ((d.doc_id, *title_and_text(d)) for d in fetched(name, dataset.docs_iter))
    return _tables(documents, ["passage_id", "title", "text"], _STEP)


def title_and_text(document: Any) -> tuple[str, str | None]:
    """Title and text of a document of any data set. If only `default_text()` has the text, it begins with the title, which is removed."""
    title = (getattr(document, "title", None) or "").strip()
    if hasattr(document, "text"):
        return title, document.text
    whole: str = document.default_text().strip()
    rest = whole.removeprefix(title).strip()
    return (title, rest) if title and rest and whole.startswith(title) else ("", whole)


def _tables(rows: Iterator[tuple[Any, ...]], names: list[str], step: int) -> Iterator[pa.Table]:
    while block := list(islice(rows, step)):
        yield _table(block, names)


def _table(rows: list[tuple[Any, ...]], names: list[str]) -> pa.Table:
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
