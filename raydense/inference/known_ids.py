"""The queries and passages that a run names, looked up in those that a stage was given.

All are looked up before anything is scored: the turn of an unknown one's block may come after hours, and then other queries or another
corpus, which is the remedy, would make of all that was scored the beginning of another output.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.lookup import IdLookup
from raydense.data.runs import RunReader
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import concat_parts, unknown_query
from raydense.errors import InputError
from raydense.inference.settings import RerankSettings
from raydense.storage import Artifact


def refuse_unknown_ids(settings: RerankSettings, blocks: Iterable[dict[str, int]], prints: dict[str, str]) -> None:
    """InputError with the first hit of these blocks, to the depth, whose query or passage is unknown; holds the queries' ids and one block.

    The passages are looked up where the run names no corpus, as an imported one: others were taken from their corpus.
    """
    run = Artifact.open(settings.run, "run", prints["run"])
    store = PassageStore(settings.corpus, prints["corpus"]) if run.summary.get("corpus") is None else None
    reader = RunReader(settings.run, prints["run"], ["query_id", "rank", *(["passage_id"] if store else [])])
    parts = Artifact.open(settings.queries, "queries", prints["queries"]).parts(".parquet")
    queries = IdLookup(concat_parts(parts, "queries", ["query_id"])["query_id"])
    for block in blocks:
        hits = reader.read(block["start"], block["stop"])
        found = hits.filter(pc.less_equal(hits["rank"], settings.depth)).combine_chunks()
        query_places(queries, found["query_id"], settings.run)
        if store:
            passage_rows(store, pc.unique(found["passage_id"]), settings.run)


def query_places(queries: IdLookup, ids: pa.ChunkedArray, run: str) -> Rows:
    """The position of each row's query; InputError that names the first unknown one and the run."""
    at = queries.positions_of_rows(ids)
    if (at < 0).any():
        raise unknown_query(ids[int(np.argmax(at < 0))].as_py(), run)
    return at


def passage_rows(store: PassageStore, ids: pa.Array | pa.ChunkedArray, run: str) -> Rows:
    """The corpus row of each passage; InputError that names the first unknown one and the run."""
    rows = store.rows_of(ids)
    if (rows < 0).any():
        missing = ids[int(np.argmax(rows < 0))].as_py()
        raise InputError(f"names passage {missing!r}, which the corpus does not have", run, "give the corpus that it was made for")
    return rows
