"""The small artifacts, as Parquet: queries, qrels, examples and runs, with their schemas, readers and writers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.storage import Artifact, Draft, File

SCHEMAS: dict[str, pa.Schema] = {
    "queries": pa.schema([("query_id", pa.string()), ("text", pa.string()), ("answers", pa.list_(pa.string())), ("source", pa.string())]),
    "qrels": pa.schema([("query_id", pa.string()), ("passage_id", pa.string()), ("relevance", pa.int32())]),
    "examples": pa.schema(
        [
            ("query_id", pa.string()),
            ("positives", pa.list_(pa.int64())),
            ("negatives", pa.list_(pa.int64())),
            ("positive_scores", pa.list_(pa.float32())),
            ("negative_scores", pa.list_(pa.float32())),
            ("positive_sources", pa.list_(pa.string())),
            ("negative_sources", pa.list_(pa.string())),
        ]
    ),
    "topics": pa.schema([("query_id", pa.string()), ("topic", pa.int32())]),
    "run": pa.schema([("query_id", pa.string()), ("passage_id", pa.string()), ("rank", pa.int32()), ("score", pa.float32())]),
}
_OPTIONAL = {"answers", "source", "positive_scores", "negative_scores", "positive_sources", "negative_sources"}


def commit_table(draft: Draft, name: str, table: pa.Table, **note: Any) -> File:
    """Commit `table` to a draft as the Parquet file `name`, in the column order and types of the draft's kind."""
    schema = SCHEMAS[draft.kind]
    kept = pa.schema([f for f in schema if f.name in table.column_names or f.name not in _OPTIONAL])
    ordered = table.select(kept.names).cast(kept)
    return draft.commit(name, lambda path: pq.write_table(ordered, path, compression="zstd"), table.num_rows, **note)


def read_table(path: str | os.PathLike[str], kind: str, columns: list[str] | None = None) -> pa.Table:
    """All rows of a queries, qrels, examples or run artifact, in order."""
    return concat_parts(Artifact.open(path, kind).parts(".parquet"), kind, columns)


def concat_parts(parts: list[Path], kind: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of some Parquet files of one artifact."""
    if not parts:
        table = SCHEMAS[kind].empty_table()
        return table.select(columns) if columns else table
    return pa.concat_tables([pq.read_table(p, columns=columns) for p in parts])


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write an uncompressed Arrow file of a single batch, which a memory-map reads without a copy."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def query_positions(wanted: pa.ChunkedArray | pa.Array, queries: pa.Table, where: object) -> NDArray[np.int64]:
    """The position in `queries` of each query id, int64 [n]; InputError that names the first unknown one and `where` it is."""
    large = pa.large_string()  # Arrow's others are 2 GiB at most
    found = pc.index_in(wanted.cast(large), value_set=queries["query_id"].cast(large))
    if found.null_count:
        raise unknown_query(wanted.filter(pc.is_null(found))[0].as_py(), where)
    return found.to_numpy(zero_copy_only=False) if isinstance(found, pa.Array) else found.to_numpy()


def judged_rows(queries: pa.Table, qrels: str | os.PathLike[str] | None) -> NDArray[np.int64]:
    """The rows of the queries that `qrels` judge, rising, int64 [n]; all without qrels. InputError for an unknown query."""
    rows = np.arange(len(queries))
    if qrels:
        rows = np.sort(query_positions(pc.unique(read_table(qrels, "qrels", ["query_id"])["query_id"]), queries, qrels))
    return rows


def first_repeated(ids: pa.ChunkedArray) -> tuple[int, int] | None:
    """The position of the first id that is there before, and where it is before; None where no id is repeated."""
    first = first_of_text(ids)
    again = np.flatnonzero(first != np.arange(len(first)))
    return (int(again[0]), int(first[again[0]])) if again.size else None


def first_of_text(texts: pa.ChunkedArray) -> NDArray[np.int64]:
    """The position of the first query with the text of each, int64 [n]: one question under two ids then has the positives of both."""
    large = texts.cast(pa.large_string())  # Arrow's others are 2 GiB at most
    return pc.index_in(large, value_set=large).to_numpy().astype(np.int64)


def one_array(texts: pa.ChunkedArray) -> pa.Array:
    """The texts as one array: of Arrow's large strings, which may be more than 2 GiB."""
    return texts.cast(pa.large_string()).combine_chunks()


def one_column(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Columns of one type, one after another, without a copy; of strings where there are none."""
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type if columns else pa.string())


def unknown_query(query: str, where: object) -> InputError:
    """The error of what names a query that the queries do not have."""
    return InputError(f"names query {query!r}, which the queries do not have", where, "give the queries that it was made for")


def positives_of(qrels: pa.Table) -> pa.Table:
    """The qrels with relevance of at least 1."""
    return qrels.filter(pc.greater_equal(qrels["relevance"], 1))


def query_starts(query_id: pa.ChunkedArray) -> NDArray[np.int64]:
    """Offsets of the first row of each query in rows grouped by query, and of the end of the last; int64 [queries + 1]."""
    if not len(query_id):
        return np.zeros(1, dtype=np.int64)
    ids = query_id.combine_chunks()
    changed = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(changed) + 1, [len(ids)]]).astype(np.int64)


def refuse_rows_outside(
    examples: pa.Table, name: str, values: NDArray[np.int64], offsets: NDArray[np.int64], rows: int, path: object
) -> None:
    """InputError if a list of the examples' column `name`, of these values and offsets, names a row that a corpus of `rows` does not have."""
    wrong = np.flatnonzero((values < 0) | (values >= rows))
    if wrong.size:
        example = int(np.searchsorted(offsets, wrong[0], side="right")) - 1
        query, row = examples["query_id"][example].as_py(), int(values[wrong[0]])
        raise InputError(f"{name} of query {query!r} name row {row}, the corpus has {rows:,}", path, "give the corpus it was made with")
