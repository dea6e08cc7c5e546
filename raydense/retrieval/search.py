"""The stage `search`: queries through the pool of an index, or of several whose hits are fused, block by block, into a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.tables import commit_table, judged_rows, query_starts, read_table
from raydense.errors import InputError
from raydense.ranges import ranges
from raydense.retrieval.fused_indexes import asked_without_model, fusion_of_indexes
from raydense.retrieval.fusion_rule import Fusion
from raydense.retrieval.kind import kind_of
from raydense.retrieval.merge import Rows, Scores
from raydense.retrieval.passage_ids import PassageIds
from raydense.retrieval.query_vectors import check_model, check_vectors, encoded_blocks
from raydense.retrieval.settings import SearchSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import Progress
from raydense.storage import Artifact, Draft, commits_in, folders_by_name, named, provenance, provenance_of, read_manifest, releases_outputs

if TYPE_CHECKING:
    from raydense.retrieval.pool import Queries, SearchPool

_MOST_HITS = 2**27  # of 12 bytes each
_ROUNDING = 2  # of scores of inverted lists, and behind transformations; 0.2 noted none


@releases_outputs
def search(settings: SearchSettings) -> Artifact:
    """The best k passages of each query as a run: one committed file per block of queries, in the order of the queries.

    Queries are encoded by a pool of actors while earlier blocks are searched, or their vectors are given. A second run after a kill
    continues with the missing blocks. A search by a running pool gives the same run as a search of its index; a finished run no
    longer needs the pool. Of several indexes the hits are those of `fuse` over their runs of `max(k, depth)` hits, where the depth is that of
    the fused run `fuse`, else 100. Raises InputError if model, vectors, queries and index do not belong together, qrels name an unknown
    query, the pool does not fit on the cluster, or a running pool answers from another index or switches to one meanwhile.
    """
    pools: list[SearchPool] = []
    if settings.pool:
        try:
            pools, settings = _by_pools(settings)
        except InputError:
            if (done := _finished(settings)) is None:
                raise
            return done
    made_from = provenance("search", settings)
    by_name = folders_by_name(settings.indexes, "index")
    names, indexes = tuple(by_name), [Artifact.open(folder, "index") for folder in by_name.values()]
    fusion = fusion_of_indexes(indexes, names, settings.fuse, settings.model, settings.search_params)
    if read_manifest(settings.output) is None:  # before the output is opened, which other parameters would not match
        _check_new(settings, indexes, fusion)
    draft = Draft.open(settings.output, "run", made_from)
    if draft.done:
        return draft.done
    for index in indexes:
        _check_asked(settings, index)
    queries, positions = _queries(settings)
    there = draft.committed()
    starts = [at for at in range(0, len(queries), settings.block) if _run_file(at // settings.block) not in there]
    asked = _Asked(names, indexes, fusion, pools)
    if starts:
        _refuse_other_rounding(draft, indexes)
        _search_blocks(draft, settings, asked, queries, positions, starts)
    found = sum(file.rows for file in draft.committed().values())
    return draft.finish(found, queries=len(queries), k=settings.k, corpus=indexes[0].summary["corpus"], **asked.about(settings.k))


def _check_new(settings: SearchSettings, indexes: list[Artifact], fusion: Fusion | None) -> None:
    """InputError unless the indexes take the parameters of a search that is not finished, and its blocks can be held."""
    if not settings.pool:
        for index in indexes:
            kind_of(index).check_params(_params(settings, index))
        if settings.gpu and not any(kind_of(index).encoded for index in indexes):
            kind_of(indexes[0]).check_gpu("")
    if not commits_in(settings.output):  # which fix the block
        _refuse_large_blocks(settings, indexes, fusion)


def _depths(settings: SearchSettings, fusion: Fusion | None) -> list[int]:
    """How many hits each index is asked for: k, and one for the query itself if that is left out; if they are fused, at least as many as the rule reads."""
    k = settings.k + settings.drop_identical
    return [max(k, depth) for depth in fusion.depths] if fusion else [k]


def _refuse_large_blocks(settings: SearchSettings, indexes: list[Artifact], fusion: Fusion | None) -> None:
    """InputError where the shards of an index that is not exact would return gigabytes for one block: all the hits asked for, each of them."""
    for index, depth in zip(indexes, _depths(settings, fusion), strict=True):
        exact, shards = kind_of(index).exact, index.summary["shards"]
        each = min(depth, index.rows) if exact else sum(min(depth, stop - start) for start, stop in shards)
        if each * settings.block > _MOST_HITS:
            what = f"{settings.block:,} queries of a block x {each:,} hits of all shards are more than the {_MOST_HITS:,} that are held at once"
            raise InputError(what, "block", f"give at most {_MOST_HITS // each}" if each <= _MOST_HITS else "give a lower k")


def _refuse_other_rounding(draft: Draft, indexes: list[Artifact]) -> None:
    """InputError if blocks that are there were searched by a version of raydense whose scores have other last digits."""
    note = _rounding(indexes)
    if any(file.note.get("rounding") != note.get("rounding") for file in draft.committed().values()):
        what = "was begun by another version of raydense, whose scores differ in their last digits"
        raise InputError(what, draft.place, "delete this folder and search again")


def _rounding(indexes: list[Artifact]) -> dict[str, int]:
    """What the files of a run note of how its scores were computed; nothing where no version did it otherwise."""
    factories = [index.summary.get("factory") or "" for index in indexes]
    return {"rounding": _ROUNDING} if any(re.search("IVF|PCA|OPQ|RR|ITQ|HR|Pad", one) for one in factories) else {}


@dataclass(frozen=True)
class _Asked:
    """The indexes of a search, how their hits are fused, and the running pools that answer from them, if there are some."""

    names: Sequence[str]
    indexes: list[Artifact]
    fusion: Fusion | None
    pools: list[SearchPool]

    def about(self, k: int) -> dict[str, Any]:
        """What the summary has of them: of several as that of a fused run; and the dimension of their vectors, if there is one."""
        dimensions = {one.summary["dimension"] for one in self.indexes if one.summary.get("dimension")}
        vectors = {"dimension": dimensions.pop()} if len(dimensions) == 1 else {}
        if self.fusion is None:
            return {"kind": self.indexes[0].summary["kind"], "index": self.indexes[0].fingerprint, **vectors}
        rule, depths = self.fusion.rule, [max(k, depth) for depth in self.fusion.depths]
        runs = {
            name: {"kind": one.summary["kind"], "depth": depth} for name, one, depth in zip(self.names, self.indexes, depths, strict=True)
        }
        weights = dict(zip(self.names, rule.weights, strict=True))
        fused = {"kind": "fused", "method": rule.method, "scale": rule.scale, "weights": weights, "runs": runs}
        return {**fused, "index": [one.fingerprint for one in self.indexes], **vectors}


def _without_model(settings: SearchSettings, index: Artifact) -> bool:
    return asked_without_model(index, len(settings.indexes))


def _params(settings: SearchSettings, index: Artifact) -> str:
    return "" if _without_model(settings, index) else settings.search_params


def _check_asked(settings: SearchSettings, index: Artifact) -> None:
    """InputError unless the index takes the queries that the settings have for it."""
    if settings.vectors and not _without_model(settings, index):
        check_vectors(settings.vectors, settings.queries, index)
    elif not settings.vectors:
        check_model(None if _without_model(settings, index) else settings.model, index, settings.prompt)


def _by_pools(settings: SearchSettings) -> tuple[list[SearchPool], SearchSettings]:
    """The pools of the settings, pinned to the indexes that they answer from now, and the settings of the same search of these."""
    from raydense.retrieval.pool import SearchPool

    pools = [SearchPool.connect(name, pinned=True) for name in settings.pools]
    for pool, given in zip(pools, settings.indexes, strict=False):
        folder = named(given)[1] if len(pools) > 1 else given
        pool.refuse_other_index(folder)
    params = list(dict.fromkeys(pool.plan.search_params for pool in pools if kind_of(pool.index).encoded))
    if len(params) > 1:
        what = f"have different search parameters, {' and '.join(one or 'none' for one in params)}"
        raise InputError(what, "pool", "start them with the same")
    several = [f"{pool.name}={pool.plan.index}" for pool in pools]
    index = settings.index or (several if len(pools) > 1 else pools[0].plan.index)
    return pools, settings.model_copy(update={"index": index, "search_params": "".join(params)})


def _finished(settings: SearchSettings) -> Artifact | None:
    """A finished run of a pool that is closed or has switched since; InputError if it was made from other settings or inputs."""
    manifest = read_manifest(settings.output)
    if manifest is None:
        return None
    there = manifest["made_from"]
    names = {"names": there["names"]} if "names" in there and not settings.index else {}
    return Draft.open(settings.output, "run", provenance_of(there, "search", settings) | names).done


def _search_blocks(draft: Draft, settings: SearchSettings, asked: _Asked, queries: pa.Table, positions: Rows, starts: list[int]) -> None:
    ids, block, fusion = PassageIds(asked.indexes[0]), settings.block, asked.fusion
    k, own = settings.k + settings.drop_identical, _judged_own(settings)
    depths = _depths(settings, fusion)
    with ExitStack() as open_, Progress("search", len(queries), "queries", _done(queries, starts, block)) as progress:
        pools = _pools(settings, asked, open_)

        def blocks(index: Artifact) -> Iterator[Queries]:
            return open_.enter_context(closing(_blocks(draft, settings, index, queries, positions, starts, pools)))

        streams = _shared(asked.indexes, blocks)
        answers = [pool.answers(stream, depth) for pool, stream, depth in zip(pools, streams, depths, strict=True)]
        for at, found in zip(starts, zip(*answers, strict=True), strict=True):
            hits = [answer.hits for answer in found]
            scores, rows = fusion.fused(hits, ids.take, k) if fusion else hits[0]
            table = run_table(queries["query_id"].slice(at, block), scores, rows, ids)
            if settings.drop_identical:
                table = without_identical(table, own, settings.k)
            commit_table(draft, _run_file(at // block), table, **_rounding(asked.indexes))
            progress.add(len(rows))


def _shared(indexes: list[Artifact], blocks: Callable[[Artifact], Iterator[Queries]]) -> list[Iterator[Queries]]:
    """The `blocks` of queries of each index; those of one dimension share theirs: two encodings on one GPU would wait for each other."""
    dimensions = [index.summary.get("dimension") for index in indexes]
    first = dict(zip(reversed(dimensions), reversed(indexes), strict=True))
    shared = {dimension: iter(tee(blocks(index), dimensions.count(dimension))) for dimension, index in first.items()}
    return [next(shared[dimension]) for dimension in dimensions]


def _pools(settings: SearchSettings, asked: _Asked, open_: ExitStack) -> list[SearchPool]:
    """The running pools, or one that is started for each index; those end with `open_`."""
    from raydense.retrieval.pool import SearchPool, check_together

    if asked.pools:
        return [open_.enter_context(pool) for pool in asked.pools]
    if len(asked.indexes) > 1:
        check_together(asked.indexes, settings.shard_replicas, settings.gpu)
    found = []
    for index in asked.indexes:
        gpu = settings.gpu and not _without_model(settings, index)
        pool = SearchPool.start(
            index, shard_replicas=settings.shard_replicas, threads=settings.threads, gpu=gpu, search_params=_params(settings, index)
        )
        found.append(open_.enter_context(pool))
    return found


def _done(queries: pa.Table, starts: list[int], block: int) -> int:
    """How many queries were searched before."""
    return len(queries) - sum(min(block, len(queries) - at) for at in starts)


def _blocks(
    draft: Draft, settings: SearchSettings, index: Artifact, queries: pa.Table, positions: Rows, starts: list[int], pools: list[SearchPool]
) -> Generator[Queries, None, None]:
    """The queries of the blocks that begin at `starts`, in the index's format: vectors, or texts for BM25."""
    if _without_model(settings, index) or not (settings.vectors or settings.model):
        return (queries["text"].slice(at, settings.block).to_pylist() for at in starts)
    if settings.vectors:
        given = Vectors(settings.vectors, "queries", draft.made_from["inputs"]["vectors"])
        return (given.take(positions[at : at + settings.block]) for at in starts)
    return encoded_blocks(settings, queries, index, starts, pools)


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


def run_table(query_ids: pa.ChunkedArray, scores: Scores, rows: Rows, ids: PassageIds) -> pa.Table:
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
