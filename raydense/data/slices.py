"""Small copies of corpora, queries and qrels, to measure stages with: of texts as they are, while judgements name passages of the slice."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.storage import Artifact, Draft

_RUNS = 64  # stretches of neighbouring passages that a slice is taken from, since a corpus may be sorted
_BLOCK = 8_192


def slice_corpus(corpus: str | os.PathLike[str], rows: int, files: int, output: str | os.PathLike[str]) -> Artifact:
    """About `rows` passages, in stretches from all over the corpus, in about `files` files."""
    store, draft = PassageStore(corpus), _draft(output, "corpus")
    if draft.done:
        return draft.done
    rows = min(rows, len(store))
    writer = CorpusWriter(draft, -(-rows // max(1, files)), strict=False)
    runs = min(_RUNS, rows)
    firsts, each = np.linspace(0, len(store) - rows // runs, runs).astype(np.int64), rows // runs
    taken = 0
    for first in firsts.tolist():
        first = max(first, taken)
        taken = min(len(store), first + each)
        for at in range(first, taken, _BLOCK):
            writer.add(store.slice(at, min(at + _BLOCK, taken)))
    return writer.finish()


def slice_queries(queries: str | os.PathLike[str], rows: int, output: str | os.PathLike[str]) -> Artifact:
    """The first queries."""
    draft = _draft(output, "queries")
    if draft.done:
        return draft.done
    table = read_table(queries, "queries").slice(0, rows)
    commit_table(draft, "queries.parquet", table)
    return draft.finish(table.num_rows)


def slice_qrels(
    qrels: str | os.PathLike[str],
    queries: str | os.PathLike[str],
    corpus: str | os.PathLike[str],
    rows: int,
    output: str | os.PathLike[str],
) -> Artifact:
    """As many judgements as the first `rows` judged queries have, but of queries and passages of the slices, drawn at random.

    What a stage costs depends on how many there are, and not on which passages they name.
    """
    draft = _draft(output, "qrels")
    if draft.done:
        return draft.done
    judged = read_table(qrels, "qrels")
    names = pc.unique(judged["query_id"])
    asked = read_table(queries, "queries", ["query_id"])["query_id"]
    rows = max(1, min(rows, len(names), len(asked)))
    kept = judged.filter(pc.is_in(judged["query_id"], value_set=names.slice(0, rows)))
    store = PassageStore(corpus)
    drawn = np.random.default_rng(rows).integers(0, len(store), len(kept))
    at = pc.index_in(kept["query_id"], value_set=names)
    table = pa.table({"query_id": asked.take(at), "passage_id": store.ids(drawn), "relevance": kept["relevance"]})
    table = table.group_by(["query_id", "passage_id"], use_threads=False).aggregate([("relevance", "max")])
    commit_table(draft, "qrels.parquet", table.rename_columns(["query_id", "passage_id", "relevance"]))
    return draft.finish(table.num_rows)


def _draft(output: str | os.PathLike[str], kind: str) -> Draft:
    return Draft.open(output, kind, {"stage": "slice", "settings": {}, "inputs": {}})
