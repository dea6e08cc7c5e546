"""Training examples from triples of a query, a positive and a negative, a line each: read block by block, as MS MARCO's has 400 million lines.

The triples are of ids, or of texts, which become a corpus and queries of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.formats.intake import Intake
from raydense.data.formats.lines import Field, Where, columns, placed, refuse_blank, where
from raydense.data.formats.texts import Numbers, lists_of, text_id
from raydense.data.store import PassageStore
from raydense.data.tables import one_column

_TEXTS = [Field("query", "text"), Field("positive", "text", "pos"), Field("negative", "text", "neg")]


def give_id_triples(split: str, blocks: Iterable[pa.Table], at: Where, source: object, intake: Intake) -> None:
    """One example per query of `source`: its distinct positives and negatives, in the order of the triples of ids.

    The triples are read block by block: only three numbers per triple are kept in memory, since MS MARCO's own file has 400 million.
    """
    numbers = Numbers()
    asked, lines = [pa.chunked_array([], pa.string())], [np.empty((3, 0), np.int32)]
    intake.needed_store(at)
    for block, here in placed(blocks, at):
        ids = (pa.table({"query_id": block["query_id"], "passage_id": block[side]}) for side in ("positive", "negative"))
        sides = [intake.check_ids(pairs, here).astype(np.int32) for pairs in ids]
        query, new = numbers.of(block["query_id"], source)
        asked.append(new)
        lines.append(np.stack([query, *sides]))
    query, *sides = np.concatenate(lines, axis=1)
    lists = [lists_of(query, side, len(numbers)) for side in sides]
    intake.examples(split, pa.table({"query_id": one_column(asked), "positives": lists[0], "negatives": lists[1]}), lambda _: str(source))


class TextTriples:
    """Triples of texts, read block by block: each text is written once, and only three numbers per line are kept in memory.

    Passages get ids from their texts; equal queries count once.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self._passages, self._queries = Numbers(), Numbers()
        self._ids: list[pa.Array] = []
        self._texts: list[pa.ChunkedArray] = []
        self._lines: dict[Path, list[NDArray[np.int32]]] = {path: [] for path in paths}

    def read(self) -> Iterator[pa.Table]:
        """The passages that no earlier line has, while the files are read."""
        for path in self.paths:
            for block, at in placed(columns(path, _TEXTS), where(path)):
                refuse_blank(block, block.column_names, at)
                query, asked = self._queries.of(block["query"], path)
                self._texts.append(asked)
                passage, texts = self._passages.of(_in_turn(block["positive"], block["negative"]), path)
                self._lines[path].append(np.stack([query, passage[0::2], passage[1::2]]))
                ids = pa.array([text_id("", text) for text in texts.to_pylist()], pa.string())
                self._ids.append(ids)
                yield pa.table({"passage_id": ids, "title": pa.repeat("", len(ids)), "text": texts})

    def queries(self) -> pa.Table:
        """The queries, in the order of their numbers."""
        texts = one_column(self._texts)
        return pa.table({"query_id": pa.array([text_id(text) for text in texts.to_pylist()], pa.string()), "text": texts})

    def examples(self, path: Path, store: PassageStore, queries: pa.Table) -> pa.Table:
        """One example per query, in the order of the file, with the rows of its positives and of its negatives, each once."""
        rows = store.known_rows(pa.chunked_array(self._ids, pa.string()), path)
        query, *sides = np.concatenate(self._lines[path], axis=1)
        numbers, first, back = np.unique(query, return_index=True, return_inverse=True)
        turn = np.argsort(np.argsort(first))[back]
        lists = [lists_of(turn, rows[side], len(numbers)) for side in sides]
        ids = queries["query_id"].take(pa.array(numbers[np.argsort(first)]))
        return pa.table({"query_id": ids, "positives": lists[0], "negatives": lists[1]})


def _in_turn(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts of two columns, line by line."""
    turns = np.arange(2 * len(one)).reshape(2, -1).T.ravel()
    return one_column([one, other]).take(pa.array(turns))
