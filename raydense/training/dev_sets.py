"""Draws the dev sets of a training: for a retriever a small set of passages, for a re-ranker the first hits of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.store import PassageStore
from raydense.data.tables import positives_of, query_positions, read_table
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.storage import Artifact
from raydense.training.ragged import Ints, Ragged
from raydense.training.settings import DevSettings

METRICS = ("mrr@10", "ndcg@10", "recall@100")
METRIC, OF_RERANKER = METRICS[0], "reranker mrr@10"
_DEPTH = 20
_RANDOM = 0.25  # of the passages next to the positives, at least


@dataclass(frozen=True)
class DevSet:
    """Dev queries by position [n], the rows of their candidates, and which of these are relevant: the columns of each query, as of `relevant_columns`.

    A retriever's candidates are the same for all queries: rows [p]. A re-ranker's are each query's own: rows [n, depth], absent bool
    [n, depth] where a query has fewer. `sources` has, of queries of `mix`, which are of each source: bool [n].
    """

    query: Ints
    rows: Ints
    relevant: Ragged
    absent: NDArray[np.bool_] | None = None
    sources: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def relevant_of(self, block: slice) -> NDArray[np.bool_]:
        """Which candidates are relevant for a block of the queries: bool [b, p], or [b, depth]. Of all queries it would be far more than the rest."""
        found = self.relevant.take(np.arange(len(self.query))[block])
        relevant = np.zeros((len(found), self.rows.shape[-1]), bool)
        relevant[found.owner, found.values] = True
        return relevant


def relevant_columns(of_query: Ints, column: Ints, queries: int) -> Ragged:
    """The relevant columns of each of so many queries, rising, from pairs of a query's number and a column, in any order; each pair counts once."""
    of_query, column = np.unique(np.stack([of_query, column]), axis=1)
    return Ragged(column, np.append(0, np.cumsum(np.bincount(of_query, minlength=queries))))


# Query positions, ranks (from 0) and rows of the first passages of a run; None where there is none.
FirstOfRun = tuple[Ints, Ints, Ints] | None
# From positions of queries and rows of their positives, a run, the most passages, those of the corpus, and what draws.
MakeDevSet = Callable[[Ints, Ints, FirstOfRun, int, int, np.random.Generator], DevSet]


def read_dev_sets(settings: Any, store: PassageStore, made: dict[str, MakeDevSet]) -> dict[str, DevSet]:
    """The dev sets that a method measures, by the names of the metrics; empty without the group `dev`.

    `dev.passages` bounds the passages, or the pairs, of one measurement. A query whose positives the corpus lacks is no dev query.
    """
    dev: DevSettings | None = settings.dev
    if dev is None:
        return {}
    queries = read_table(settings.queries, "queries")
    qrels = positives_of(read_table(dev.qrels, "qrels"))
    if not qrels.num_rows:
        raise InputError("no judgement with relevance of at least 1", dev.qrels, "give others")
    judged, qrels = len(qrels), store.known_judgements(qrels, dev.qrels)
    store.say_lacking("train", judged - len(qrels), judged, dev.qrels)
    at = query_positions(qrels["query_id"], queries, dev.qrels)
    rows = store.known_rows(qrels["passage_id"], dev.qrels)
    run = _first_of_run(dev, np.unique(at), queries, store) if dev.run else None
    if run is not None:
        _refuse_another(run[0], at, dev)
    sets = {name: make(at, rows, run, dev.passages, len(store), np.random.default_rng([settings.seed, 1])) for name, make in made.items()}
    for one in sets.values():
        if one.absent is not None and not len(one.relevant.values):
            raise InputError(f"has no relevant passage among the first {_DEPTH} of a dev query", dev.run, "give better candidates")
    return {name: replace(one, sources=_of_sources(one.query, queries)) for name, one in sets.items()}


def _refuse_another(of_run: Ints, judged: Ints, dev: DevSettings) -> None:
    """InputError where the run has none of the dev queries; where it lacks some, that is logged."""
    asked = np.unique(judged)
    lacking = int((~np.isin(asked, of_run)).sum())
    if lacking == len(asked):
        raise InputError(f"has no query that is judged in {dev.qrels}", dev.run, "give candidates of the dev queries")
    if lacking:
        say(f"train: {lacking:,} of {len(asked):,} dev queries are not in {dev.run}: as candidates they have none")


def _of_sources(query: Ints, queries: pa.Table) -> dict[str, NDArray[np.bool_]]:
    """Which of the dev queries are of each source, where they are of several."""
    if "source" not in queries.column_names:
        return {}
    source = np.array(queries["source"].take(pa.array(query)).to_pylist(), object)
    names = sorted(set(source))
    return {name: source == name for name in names} if len(names) > 1 else {}


def _first_of_run(dev: DevSettings, judged: Ints, queries: pa.Table, store: PassageStore) -> tuple[Ints, Ints, Ints]:
    """Query positions, ranks (from 0) and rows of the first passages of the judged queries in a run, in its order; reads it in blocks."""
    assert dev.run is not None
    run = Artifact.open(dev.run, "run")
    store.refuse_rows_of_another(run)
    lookup = IdLookup(queries["query_id"].take(pa.array(judged)))
    found = [np.empty((3, 0), np.int64)]
    for block in query_blocks(run.parts(".parquet"), BLOCK_ROWS, ["query_id", "passage_id", "rank"]):
        block = block.filter(pc.less_equal(block["rank"], _DEPTH))
        place = lookup.positions_of_rows(block["query_id"])
        mine = block.filter(pa.array(place >= 0))
        found.append(np.stack([judged[place[place >= 0]], mine["rank"].to_numpy() - 1, store.known_rows(mine["passage_id"], dev.run)]))
    at, rank, rows = np.concatenate(found, axis=1)
    return at, rank, rows


def retriever_set(at: Ints, rows: Ints, run: FirstOfRun, most: int, corpus: int, rng: np.random.Generator) -> DevSet:
    """Queries over a small set of passages: their positives, the first hits of the run, and passages drawn at random.

    Where their positives alone are more than half of the passages, as many of the queries are drawn as leave half for others. There are no
    more queries than passages.
    """
    at, rows = _drawn(at, rows, most // 2, rng)
    kept = np.unique(rows)
    if run is not None:
        run_at, rank, run_rows = run
        mine = np.isin(run_at, at) & ~np.isin(run_rows, kept)
        hard = run_rows[mine][np.argsort(rank[mine], kind="stable")]
        _, first = np.unique(hard, return_index=True)
        kept = np.union1d(kept, hard[np.sort(first)][: int((1 - _RANDOM) * max(0, most - len(kept)))])
    if len(kept) < most:
        others = rng.choice(corpus, size=min(corpus, 2 * most), replace=False)
        kept = np.sort(np.concatenate([kept, others[~np.isin(others, kept)][: most - len(kept)]]))
    query, of_query = np.unique(at, return_inverse=True)
    return DevSet(query, kept, relevant_columns(of_query, np.searchsorted(kept, rows), len(query)))


def _drawn(at: Ints, rows: Ints, most: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """The judgements of at most `2 * most` queries, drawn at random, that have at most `most` of them, or name at most `most` passages."""
    query, of_query = np.unique(at, return_inverse=True)
    fits = len(np.unique(rows)) <= most
    if fits and len(query) <= 2 * most:
        return at, rows
    order = rng.permutation(len(query))
    held = np.cumsum(np.bincount(of_query)[order])
    count = 2 * most if fits else max(1, int(np.searchsorted(held, most, side="right")))
    taken = np.isin(of_query, order[:count])
    return at[taken], rows[taken]


def reranker_set(at: Ints, rows: Ints, run: FirstOfRun, most: int, corpus: int, rng: np.random.Generator) -> DevSet:
    """Queries, each over its own first hits in the run."""
    query = np.unique(at)
    if len(query) * _DEPTH > most:
        query = np.sort(rng.choice(query, size=max(1, most // _DEPTH), replace=False))
    assert run is not None, "a re-ranker's dev set needs dev.run"
    run_at, rank, run_rows = run
    mine = np.isin(run_at, query)
    of_query = np.searchsorted(query, run_at[mine])
    candidates = np.full((len(query), _DEPTH), -1, np.int64)
    candidates[of_query, rank[mine]] = run_rows[mine]
    relevant = np.isin(_pair(query[:, None], candidates, corpus), _pair(at, rows, corpus))
    of_query, column = np.nonzero(relevant & (candidates >= 0))
    return DevSet(query, np.maximum(candidates, 0), relevant_columns(of_query, column, len(query)), candidates < 0)


def _pair(query: Ints, rows: Ints, corpus: int) -> Ints:
    return query * np.int64(corpus + 1) + rows + 1
