"""Reads training files whose lines have the texts of a query and of passages that a corpus has: the passages are found by their texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.formats.lines import Field, Where, columns, placed, refuse_blank, where
from raydense.data.formats.texts import Numbers, TextCorpus, lists_of, text_id
from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.runtime.progress import say


class TextPairs:
    """The pairs of query and passage in a file of columns `query` and either `positive` and `negative`, or `passage` and `label` (1 or 0).

    The file is read a block at a time; held are the texts of the queries, and three numbers a pair. InputError on an empty text,
    and with `strict` on one that no passage of `store` has; otherwise these pairs are left out, and counted.
    """

    def __init__(self, path: Path, fields: list[Field], store: PassageStore, strict: bool) -> None:
        self.store, self.texts = store, list[str]()
        self._path, self._strict, self._lost = path, strict, 0
        numbers, parts = Numbers(), list[NDArray[np.int64]]()
        for table, at in placed(columns(path, fields), where(path)):
            refuse_blank(table, [name for name in table.column_names if name in ("query", "positive", "negative", "passage")], at)
            query, new = numbers.of(table["query"], path)
            self.texts += new.to_pylist()
            parts += [np.stack([query, self._rows(texts, at), positive]) for texts, positive in _sides(table)]
        self._query, self._row, self._positive = np.concatenate(parts, axis=1)
        if self._lost:
            say(f"import {path.name}: {self._lost:,} passages that the corpus does not have left out, of {self._row.size:,}")

    def _lists(self, positive: bool) -> pa.ListArray:
        """The rows of each query's positives, or of its other passages, in the order of the file: lists of int64."""
        keep = (self._positive == positive) & (self._row >= 0)
        return lists_of(self._query[keep], self._row[keep], len(self.texts))

    def examples(self, ids: dict[str, str]) -> pa.Table:
        """The queries that have a positive, their ids by their texts, with the rows of their passages; InputError where none has."""
        sides = {"positives": self._lists(True), "negatives": self._lists(False)}
        some = np.diff(sides["positives"].offsets.to_numpy()) > 0
        if not some.any():
            raise InputError("has no query with a positive passage", self._path, "give a file that has some")
        if left := int((~some).sum()):
            say(f"import {self._path.name}: {left:,} of {len(some):,} queries have no positive passage, and are left out")
        return pa.table({"query_id": pa.array([ids[text] for text in self.texts], pa.string()), **sides}).filter(pa.array(some))

    def _rows(self, texts: pa.ChunkedArray, at: Where) -> NDArray[np.int64]:
        rows = self.store.rows_of_texts(texts)
        unknown = np.flatnonzero(rows < 0)
        if unknown.size and self._strict:
            what = f"has a text that no passage of the corpus has: {texts[int(unknown[0])].as_py()[:40]!r}"
            raise InputError(what, at(int(unknown[0])), "give its own corpus, or leave such passages out with --no-strict")
        self._lost += unknown.size
        return rows


def named_queries(trained: list[tuple[Path, TextPairs]], queries: TextCorpus) -> dict[str, str]:
    """The ids of queries by their texts: those of `queries`, the first where several have a text, and ids made of it of all others, which are added."""
    known = {asked: query_id for query_id, (asked, _) in reversed(queries.queries.items())}
    for path, pairs in trained:
        for asked in pairs.texts:
            if asked not in known:
                known[asked] = queries.add_query(asked, str(path), text_id(asked))
    return known


def _sides(table: pa.Table) -> Iterator[tuple[pa.ChunkedArray, NDArray[np.int64]]]:
    """The passages of the lines, each with 1 for a positive, 0 for a negative."""
    if "label" in table.column_names:
        yield table["passage"], (table["label"].to_numpy() > 0).astype(np.int64)
        return
    for side in ("positive", "negative"):
        yield table[side], np.full(table.num_rows, side == "positive", np.int64)
