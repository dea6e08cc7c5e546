"""Any data set that the library ir_datasets knows, by its id; the library is an extra, and is imported only here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydense.data.formats.intake import Intake, Passages
from raydense.errors import DownloadError, InputError, fixable

BY_NAME = True
_STEP = 8_192


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
    """Import those of documents, queries and qrels that the data set has; the split is the last part of its id."""
    name = str(source)
    dataset = _load(name)
    if intake.store is None and dataset.has_docs():
        intake.corpus(passages(source))
    if dataset.has_queries():
        rows = [(q.query_id, q.default_text()) for q in fetched(name, dataset.queries_iter)]
        intake.queries(_table(rows, ["query_id", "text"]), lambda row: f"{name}, query {row + 1}")
    if dataset.has_qrels():
        judged = [(q.query_id, q.doc_id, q.relevance) for q in fetched(name, dataset.qrels_iter)]
        table = _table(judged, ["query_id", "passage_id", "relevance"])
        intake.qrels(name.rpartition("/")[2], table, lambda row: f"{name}, judgement {row + 1}")


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
    documents = fetched(name, dataset.docs_iter)
    while step := list(islice(documents, _STEP)):
        yield _table([(d.doc_id, *title_and_text(d)) for d in step], ["passage_id", "title", "text"])


def title_and_text(document: Any) -> tuple[str, str | None]:
    """Title and text of a document of any data set. If only `default_text()` has the text, it begins with the title, which is removed."""
    title = (getattr(document, "title", None) or "").strip()
    if hasattr(document, "text"):
        return title, document.text
    whole: str = document.default_text().strip()
    rest = whole.removeprefix(title).strip()
    return (title, rest) if title and rest and whole.startswith(title) else ("", whole)


def _table(rows: list[tuple[Any, ...]], names: list[str]) -> pa.Table:
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
