"""Reads a run for mining: in blocks of complete queries, with the corpus, the queries and the positives that belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.data.store import PassageStore, Rows
from raydense.data.tables import SCHEMAS, query_positions, query_starts, read_table
from raydense.errors import InputError
from raydense.mining.negatives import Flags, Positives

BLOCK_ROWS = 1 << 18


def query_blocks(parts: list[Path], rows: int) -> Iterator[pa.Table]:
    """The rows of a run's files in order, in tables of complete queries with about `rows` rows; holds little more than one table."""
    held: pa.Table | None = None
    for part in parts:
        for batch in pq.ParquetFile(part).iter_batches(rows):
            table = pa.Table.from_batches([batch])
            held = pa.concat_tables([held, table]).combine_chunks() if held else table
            cut = int(query_starts(held["query_id"])[-2]) if held.num_rows else 0
            if cut and held.num_rows >= rows:
                yield held.slice(0, cut)
                held = held.slice(cut)
    if held is not None and held.num_rows:
        yield held


class Judged:
    """What all blocks of a run share: the corpus, the queries, the positives, and which queries the run has."""

    def __init__(self, run: str, corpus: str, queries: str, qrels: str | None) -> None:
        self.run = run
        self.store = PassageStore(corpus)
        self.queries = read_table(queries, "queries", ["query_id"])
        judgements = read_table(qrels, "qrels") if qrels else SCHEMAS["qrels"].empty_table()
        query_positions(judgements["query_id"], self.queries, qrels)
        self.positives = Positives.of(judgements, self.store, qrels)
        self.met = np.zeros(self.queries.num_rows, dtype=bool)
        self.judged_met = np.zeros(len(self.positives), dtype=bool)

    def queries_of(self, block: pa.Table) -> tuple[pa.Array, Rows, Rows]:
        """The id of each query of a block, how many rows it has, and its number among the judged queries, or -1.

        InputError on an unknown query, and on one whose rows are not adjacent.
        """
        starts = query_starts(block["query_id"])
        ids = block["query_id"].take(pa.array(starts[:-1])).combine_chunks()
        known = query_positions(ids, self.queries, self.run)
        again = self.met[known]
        again[np.setdiff1d(np.arange(len(known)), np.unique(known, return_index=True)[1])] = True
        if again.any():
            query = ids[int(np.argmax(again))].as_py()
            raise InputError(f"the rows of query {query!r} are not adjacent", self.run, "sort the run by query and rank")
        self.met[known] = True
        numbers = pc.fill_null(pc.index_in(ids, value_set=self.positives.query_ids), -1).to_numpy().astype(np.int64)
        self.judged_met[numbers[numbers >= 0]] = True
        return ids, np.diff(starts), numbers

    @property
    def unmet(self) -> Flags:
        """For each judged query whether it has a positive and the run, which was read to its end, does not have it; bool [queries]."""
        return (self.positives.counts > 0) & ~self.judged_met
