"""The queries that a run fails: judged ones without a positive among the first hits; read by blocks, and drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.construction.settings import AnalyseSettings
from raydense.data.draws import draw
from raydense.data.lookup import hash_strings
from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.store import Rows
from raydense.errors import InputError
from raydense.mining.blocks import Judged
from raydense.mining.negatives import Candidates
from raydense.runtime.progress import Progress
from raydense.storage import Artifact


@dataclass(frozen=True)
class Failures:
    """The failed queries that were drawn, in the order of the run, with their first hits.

    `ids` and `numbers` (among the judged queries) are those of the queries; a hit's `query` is a position in these. `judged` counts the judged queries that
    have a positive, `failed` those without one among their first hits, and `without_hits` those of them without any hit, which are not drawn.
    """

    ids: pa.Array
    numbers: Rows
    hits: Candidates
    judged: int
    failed: int
    without_hits: int


def failures(settings: AnalyseSettings, judged: Judged, run: Artifact) -> Failures:
    """Draw up to `sample` of the failed queries, by seed and id, whatever the order of the run; InputError if the run fails none.

    A passage of another id with the text of a positive is no positive here: that it was not judged is what an analysis should show.
    """
    ids, numbers, hits = [], [], []
    with Progress("analyse: hits", run.rows, "hits") as progress:
        for block in query_blocks(run.parts(".parquet"), BLOCK_ROWS):
            queries, lengths, number = judged.queries_of(block)
            failed, found = _of_block(settings, judged, block, lengths, number)
            ids.append(queries.filter(pa.array(failed)))
            numbers.append(number[failed])
            hits.append(found)
            progress.add(block.num_rows)
    every = int((judged.positives.counts > 0).sum())
    if every == 0 or judged.unmet.sum() == every:
        raise InputError("has no query that the qrels have a positive for", settings.run, "give the run of the queries of these qrels")
    chosen = _drawn(settings, ids)
    if not len(chosen):
        fix = "there is no error to look at; give a smaller k"
        raise InputError(f"has a positive among the first {settings.k} hits of every query", settings.run, fix)
    unmet = int(judged.unmet.sum())
    drawn = pa.concat_arrays(ids).take(pa.array(chosen)), np.concatenate(numbers)[chosen], _hits_of(hits, ids, chosen)
    return Failures(*drawn, judged=every, failed=sum(map(len, ids)) + unmet, without_hits=unmet)


def _of_block(
    settings: AnalyseSettings, judged: Judged, block: pa.Table, lengths: Rows, number: Rows
) -> tuple[NDArray[np.bool_], Candidates]:
    """Which queries of a block fail, and their first hits; a hit's query is its position among those that fail."""
    query, rank = np.repeat(np.arange(len(lengths)), lengths), block["rank"].to_numpy()
    asked = judged.positives.counts_of(number) > 0
    taken = (rank <= settings.k) & asked[query]
    query = query[taken]
    row = judged.store.known_rows(block["passage_id"].filter(pa.array(taken)), settings.run)
    right = np.bincount(query[judged.positives.hold(number[query], row)], minlength=len(lengths)) > 0
    failed = asked & ~right
    wrong = failed[query]
    place = np.cumsum(failed) - 1
    return failed, Candidates(place[query], row, rank[taken], block["score"].to_numpy()[taken]).at(wrong)


def _drawn(settings: AnalyseSettings, ids: list[pa.Array]) -> Rows:
    """The positions of the queries drawn among all that fail, rising."""
    if not sum(map(len, ids)):
        return np.empty(0, np.int64)
    numbers = draw(settings.seed, np.concatenate([hash_strings(some) for some in ids]), np.zeros(sum(map(len, ids)), np.int64))
    return np.sort(np.argsort(numbers, kind="stable")[: settings.sample])


def _hits_of(hits: list[Candidates], ids: list[pa.Array], chosen: Rows) -> Candidates:
    """The hits of the queries drawn, with their query's position among these."""
    before = np.cumsum([0, *map(len, ids)])[:-1]
    query = np.concatenate([found.query + start for found, start in zip(hits, before, strict=True)])
    place = np.searchsorted(chosen, query)
    kept = (place < len(chosen)) & (chosen[np.minimum(place, len(chosen) - 1)] == query)
    row, rank, score = (np.concatenate([getattr(found, name) for found in hits])[kept] for name in ("row", "rank", "score"))
    return Candidates(place[kept], row, rank, score)
