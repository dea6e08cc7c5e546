"""The stage `search`: queries through an index's pool, block by block, into a run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.tables import commit_table, judged_rows, query_starts, read_table
from raydense.errors import InputError
from raydense.ranges import ranges
from raydense.retrieval.query_vectors import check_model, check_vectors, encoded_blocks
from raydense.retrieval.search_params import check_search_params
from raydense.retrieval.settings import SearchSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import Progress
from raydense.storage import Artifact, Draft, provenance, provenance_of, read_manifest

if TYPE_CHECKING:
    from raydense.retrieval.pool import Queries, SearchPool

Rows = NDArray[np.int64]


def search(settings: SearchSettings) -> Artifact:
    """The best k passages of each query as a run: one committed file per block of queries, in the order of the queries.

    Queries are encoded by a pool of actors while earlier blocks are searched, or their vectors are given. A second run after a kill
    continues with the missing blocks. A search by a running pool gives the same run as a search of its index; a finished run no
    longer needs the pool. Raises InputError if model, vectors, queries and index do not belong together, qrels name an unknown
    query, the pool does not fit on the cluster, or a running pool answers from another index or switches to one meanwhile.
    """
    pool = None
    if settings.pool:
        try:
            pool, settings = _by_pool(settings.pool, settings)
        except InputError:
            if (done := _finished(settings)) is None:
                raise
            return done
    made_from = provenance("search", settings)
    index = Artifact.open(str(settings.index), "index")
    if not settings.pool and read_manifest(settings.output) is None:  # before the output is opened, which other parameters would not match
        check_search_params(index, settings.search_params)
    draft = Draft.open(settings.output, "run", made_from)
    if draft.done:
        return draft.done
    if settings.vectors:
        check_vectors(settings.vectors, settings.queries, index)
    else:
        check_model(settings.model, index)
    queries, positions = _queries(settings)
    there = draft.committed()
    starts = [at for at in range(0, len(queries), settings.block) if _run_file(at // settings.block) not in there]
    if starts:
        _search_blocks(draft, settings, index, queries, positions, starts, pool)
    found = sum(file.rows for file in draft.committed().values())
    kind = index.summary["kind"]
    return draft.finish(found, kind=kind, queries=len(queries), k=settings.k, index=index.fingerprint, corpus=index.summary["corpus"])


def _by_pool(name: str, settings: SearchSettings) -> tuple[SearchPool, SearchSettings]:
    """The pool `name`, pinned to the index that it answers from now, and the settings of the same search of that index."""
    from raydense.retrieval.pool import SearchPool

    pool = SearchPool.connect(name, pinned=True)
    plan = pool.plan
    if settings.index and Artifact.open(settings.index, "index").fingerprint != plan.fingerprint:
        what = f"the pool {name!r} answers from another index, {plan.index}"
        raise InputError(what, settings.index, f"leave it out, or switch the pool to it with `raydense pool swap --name {name}`")
    return pool, settings.model_copy(update={"index": settings.index or plan.index, "search_params": plan.search_params})


def _finished(settings: SearchSettings) -> Artifact | None:
    """A finished run of a pool that is closed or has switched since; InputError if it was made from other settings or inputs."""
    manifest = read_manifest(settings.output)
    if manifest is None:
        return None
    return Draft.open(settings.output, "run", provenance_of(manifest["made_from"], "search", settings)).done


def _search_blocks(
    draft: Draft, settings: SearchSettings, index: Artifact, queries: pa.Table, positions: Rows, starts: list[int], pool: SearchPool | None
) -> None:
    from raydense.retrieval.pool import SearchPool

    ids, block = PassageIds(index), settings.block
    # k, and the query itself
    k, own = settings.k + settings.drop_identical, _judged_own(settings)
    if pool is None:
        pool = SearchPool.start(index, settings.replicas, None, settings.threads, settings.gpu, settings.search_params)
    with pool, closing(_blocks(settings, index, queries, positions, starts, pool)) as stream:
        done = len(queries) - sum(min(block, len(queries) - at) for at in starts)
        with Progress("search", len(queries), "queries", done) as progress:
            for at, (_, (scores, rows)) in zip(starts, pool.search_blocks(stream, k), strict=True):
                table = run_table(queries["query_id"].slice(at, block), scores, rows, ids)
                if settings.drop_identical:
                    table = without_identical(table, own, settings.k)
                commit_table(draft, _run_file(at // block), table)
                progress.add(len(rows))


def _blocks(
    settings: SearchSettings, index: Artifact, queries: pa.Table, positions: Rows, starts: list[int], pool: SearchPool
) -> Generator[Queries, None, None]:
    """The queries of the blocks that begin at `starts`, in the index's format: vectors, or texts for BM25."""
    if settings.vectors:
        given = Vectors(settings.vectors, of="queries")
        return (given.take(positions[at : at + settings.block]) for at in starts)
    if settings.model:
        return encoded_blocks(settings, queries, index, starts, pool)
    return (queries["text"].slice(at, settings.block).to_pylist() for at in starts)


def _run_file(number: int) -> str:
    return f"run-{number:05d}.parquet"


def _queries(settings: SearchSettings) -> tuple[pa.Table, Rows]:
    """The queries to search, in the order of their artifact, and the row of each there."""
    queries = read_table(settings.queries, "queries", ["query_id", "text"])
    rows = judged_rows(queries, settings.qrels)
    if not len(rows):
        raise InputError("no queries", settings.qrels or settings.queries, "give some")
    return queries.take(pa.array(rows)).combine_chunks(), rows


def _judged_own(settings: SearchSettings) -> pa.ChunkedArray:
    """The queries that are judged with a passage of their own id: such a passage is not the query, and is not dropped."""
    if not (settings.qrels and settings.drop_identical):
        return pa.chunked_array([], pa.string())
    qrels = read_table(settings.qrels, "qrels", ["query_id", "passage_id"])
    return qrels.filter(pc.equal(qrels["query_id"], qrels["passage_id"]))["query_id"]


def without_identical(run: pa.Table, but: pa.ChunkedArray, k: int) -> pa.Table:
    """The first k of each query in a run without passages of the query's own id, ranked again; those of the queries `but` stay."""
    same = pc.and_(pc.equal(run["query_id"], run["passage_id"]), pc.invert(pc.is_in(run["query_id"], value_set=but)))
    run = run.filter(pc.invert(same))
    starts = query_starts(run["query_id"])
    rank = ranges(np.ones_like(starts[1:]), np.diff(starts))
    return run.set_column(2, "rank", pa.array(rank.astype(np.int32))).filter(pa.array(rank <= k))


class PassageIds:
    """The passage ids of an index by row, memory-mapped."""

    def __init__(self, index: Artifact) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(index.file("passage_ids.arrow"))))
        self._batches = [reader.get_batch(i).column("passage_id") for i in range(reader.num_record_batches)]
        self._starts = np.cumsum([0, *map(len, self._batches)])

    def take(self, rows: NDArray[np.int64]) -> pa.Array:
        """The ids at `rows` (int64 [n], each known), in their order."""
        if len(rows) == 0:
            return pa.array([], pa.string())
        used, back = np.unique(rows, return_inverse=True)
        cuts = np.searchsorted(used, self._starts)
        cut = zip(self._batches, self._starts, cuts, cuts[1:], strict=False)
        parts = [ids.take(pa.array(used[low:high] - first)) for ids, first, low, high in cut if low < high]
        return pa.concat_arrays(parts).take(pa.array(back))


def run_table(query_ids: pa.ChunkedArray, scores: NDArray[np.float32], rows: NDArray[np.int64], ids: PassageIds) -> pa.Table:
    """Hits [n, k] as rows of a run, ranks from 1; a hit of row -1 is left out."""
    found = rows >= 0
    query, place = np.nonzero(found)
    return pa.table(
        {
            "query_id": query_ids.take(pa.array(query)),
            "passage_id": ids.take(rows[found]),
            "rank": pa.array((place + 1).astype(np.int32)),
            "score": pa.array(scores[found]),
        }
    )
