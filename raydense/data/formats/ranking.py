"""Ranks the lines of a run, in blocks of complete queries, and writes them; holds little more than one block.

Tools write a query's lines one after another. A file that does not is ranked as a whole, in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.formats.lines import Where
from raydense.data.runs import write_blocks
from raydense.data.tables import SCHEMAS, query_starts
from raydense.errors import InputError
from raydense.runtime.progress import say

Tables = Callable[[], Iterable[pa.Table]]


class _Torn(Exception):
    """The lines of a query are not adjacent."""


def write_run(path: Path, name: str, tables: Tables, at: Where) -> int:
    """Write the lines of `tables()`, called again to read them again, as the Parquet file of a run; returns its rows.

    Queries keep the order of their first lines; columns that a run does not have, such as texts, are left out. InputError where a passage is
    named twice for one query.
    """
    try:
        return write_blocks(path, f"import {name}", _ranked_blocks(_lean(tables()), at))
    except _Torn as torn:
        say(f"import {name}: the lines of query {torn.args[0]!r} are not adjacent: the file is ranked as a whole, in memory")
        whole = pa.concat_tables(_lean(tables()))
        _refuse_twice(whole, at, 0)
        return write_blocks(path, f"import {name}", [_ranked(whole)])


def _lean(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    return (table.select([name for name in table.column_names if name in SCHEMAS["run"].names]) for table in tables)


def _ranked_blocks(tables: Iterable[pa.Table], at: Where) -> Iterator[pa.Table]:
    """Complete queries, ranked; raises _Torn for a query that comes again."""
    met: set[str] = set()
    offset, held = 0, None
    for table in tables:
        held = pa.concat_tables([held, table]).combine_chunks() if held is not None else table.combine_chunks()
        cut = int(query_starts(held["query_id"])[-2]) if held.num_rows else 0
        if cut:
            yield _ranked_part(held.slice(0, cut), met, at, offset)
            offset, held = offset + cut, held.slice(cut)
    if held is not None and held.num_rows:
        yield _ranked_part(held, met, at, offset)


def _ranked_part(part: pa.Table, met: set[str], at: Where, offset: int) -> pa.Table:
    heads = part["query_id"].take(pa.array(query_starts(part["query_id"])[:-1])).to_pylist()
    for query in heads:
        if query in met:
            raise _Torn(query)
        met.add(query)
    _refuse_twice(part, at, offset)
    return _ranked(part)


def _refuse_twice(part: pa.Table, at: Where, offset: int) -> None:
    pairs = part.group_by(["query_id", "passage_id"], use_threads=False).aggregate([([], "count_all")])
    twice = pc.index(pc.greater(pairs["count_all"], 1), pa.scalar(True)).as_py()
    if twice >= 0:
        query, passage = pairs["query_id"][twice].as_py(), pairs["passage_id"][twice].as_py()
        both = pc.and_(pc.equal(part["query_id"], query), pc.equal(part["passage_id"], passage)).to_numpy()
        row = offset + int(np.flatnonzero(both)[1])
        raise InputError(f"names passage {passage!r} twice for query {query!r}", at(row), "keep one of them")


def _ranked(table: pa.Table) -> pa.Table:
    """A run with queries in the order of their first line, and hits by rank, or by score falling, or in the order of the lines; ranks from 1."""
    query = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    line = np.arange(len(query))
    key = (
        table["rank"].to_numpy() if "rank" in table.column_names else -table["score"].to_numpy() if "score" in table.column_names else line
    )
    order = np.lexsort((line, key, query))
    ordered, query = table.take(pa.array(order)), query[order]
    first = np.searchsorted(query, query, side="left")
    rank = line - first + 1
    columns = {"query_id": ordered["query_id"], "passage_id": ordered["passage_id"], "rank": rank.astype(np.int32)}
    score = ordered["score"] if "score" in ordered.column_names else pa.array((1 / rank).astype(np.float32))
    return pa.table({**columns, "score": score})
