"""Reads a run in order, in blocks of complete queries or by row range, and writes one in blocks; holds little more than one block.

In a run of raydense the rows of a query are adjacent: each stage writes them so, `import` orders them so, and a reader refuses
another run. A query may go on in the next file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydense.data.store import Rows
from raydense.data.tables import SCHEMAS, first_repeated, query_starts
from raydense.errors import InputError
from raydense.runtime.progress import Progress
from raydense.storage import Artifact

BLOCK_ROWS = 1 << 18
_GROUP_ROWS = 1 << 20  # of a row group, as pyarrow writes a whole table


def query_blocks(parts: list[Path], rows: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a run's files in order, in tables of complete queries with about `rows` rows; holds little more than one table.

    With `columns` only these are read, `query_id` among them; the blocks are the same.
    """
    held: pa.Table | None = None
    for part in parts:
        for batch in pq.ParquetFile(part).iter_batches(rows, columns=columns):
            table = pa.Table.from_batches([batch])
            held = pa.concat_tables([held, table]).combine_chunks() if held else table
            cut = int(query_starts(held["query_id"])[-2]) if held.num_rows else 0
            if cut and held.num_rows >= rows:
                yield held.slice(0, cut)
                held = held.slice(cut)
    if held is not None and held.num_rows:
        yield held


def write_blocks(path: Path, what: str, tables: Iterable[pa.Table]) -> int:
    """Write tables as the Parquet file of a run, with the row groups that one table of all their rows would have; returns the rows.

    `what` names the work in its progress.
    """
    schema, rows, held = SCHEMAS["run"], 0, SCHEMAS["run"].empty_table()
    with Progress(what, 0, "lines") as progress, pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in tables:
            held = pa.concat_tables([held, table.select(schema.names).cast(schema)])
            while held.num_rows >= _GROUP_ROWS:
                writer.write_table(held.slice(0, _GROUP_ROWS).combine_chunks(), _GROUP_ROWS)
                held = held.slice(_GROUP_ROWS)
            rows += table.num_rows
            progress.add(table.num_rows)
        if held.num_rows or not rows:
            writer.write_table(held.combine_chunks(), _GROUP_ROWS)
    return rows


def not_adjacent(query: str, where: object) -> InputError:
    """The error of a run whose rows of a query are not adjacent."""
    return InputError(f"the rows of query {query!r} are not adjacent", where, "sort the run by query and rank")


def scored_depth(run: Artifact) -> int | None:
    """Down to which rank the scores of a run that `rerank` made are the re-ranker's: below it are hits that it keeps. None of another run."""
    made_from = run.manifest["made_from"]
    return int(made_from["settings"]["depth"]) if made_from.get("stage") == "rerank" else None


class RunReader:
    """Reads a run artifact, or some columns of it, by row range; holds the requested range, and the row group that was read last.

    A run may have more files than a process may open, so each is opened for a row group alone.
    """

    def __init__(self, path: str, fingerprint: str | None = None, columns: list[str] | None = None) -> None:
        self.path = path
        found = [(part, g, rows) for part in Artifact.open(path, "run", fingerprint).parts(".parquet") for g, rows in _groups_of(part)]
        self._groups = [(part, g) for part, g, _ in found]
        self._ends = list(accumulate(rows for *_, rows in found))
        self._columns = columns or SCHEMAS["run"].names
        self.empty = SCHEMAS["run"].empty_table().select(self._columns)
        self._held = (-1, self.empty)

    def blocks(self, queries: int, depth: int) -> list[dict[str, int]]:
        """The row range of each block of `queries` queries, with its number, queries, and pairs of rank <= depth.

        InputError where the rows of a query are not adjacent.
        """
        first_rows: list[Rows] = []
        heads: list[pa.Array] = []
        pairs_before: list[Rows] = []  # each query
        before, offset, pairs = None, 0, 0
        for part, group in self._groups:
            table = _read_group(part, group, ["query_id", "rank"])
            ids = table["query_id"].combine_chunks()
            starts = query_starts(table["query_id"])[:-1]
            starts = starts[1:] if ids[0].as_py() == before else starts
            counted = np.append(0, np.cumsum(np.asarray(table["rank"]) <= depth, dtype=np.int64))
            first_rows.append(starts + offset)
            heads.append(ids.take(pa.array(starts)))
            pairs_before.append(counted[starts] + pairs)
            before, offset, pairs = ids[-1].as_py(), offset + len(ids), pairs + int(counted[-1])
        if not first_rows:
            return []
        self._refuse_torn(pa.chunked_array(heads))
        edges, count = [*np.concatenate(first_rows)[::queries].tolist(), offset], sum(map(len, heads))
        counted = np.append(np.concatenate(pairs_before)[::queries], pairs)
        return [
            {
                "block": n,
                "start": edges[n],
                "stop": edges[n + 1],
                "queries": min(queries, count - n * queries),
                "pairs": int(counted[n + 1] - counted[n]),
            }
            for n in range(len(edges) - 1)
        ]

    def _refuse_torn(self, heads: pa.ChunkedArray) -> None:
        if repeated := first_repeated(heads):
            raise not_adjacent(heads[repeated[0]].as_py(), self.path)

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows start..stop-1."""
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, stop - 1)
        tables = [self._group(number) for number in range(first, last + 1)]
        return pa.concat_tables(tables).slice(start - (self._ends[first - 1] if first else 0), stop - start)

    def _group(self, number: int) -> pa.Table:
        if self._held[0] != number:
            self._held = number, _read_group(*self._groups[number], self._columns)
        return self._held[1]


def _groups_of(part: Path) -> list[tuple[int, int]]:
    """The row groups of a file that have rows, and how many."""
    footer = pq.read_metadata(part)
    return [(group, rows) for group in range(footer.num_row_groups) if (rows := footer.row_group(group).num_rows)]


def _read_group(part: Path, group: int, columns: list[str]) -> pa.Table:
    with pq.ParquetFile(part) as file:
        return file.read_row_group(group, columns=columns)
