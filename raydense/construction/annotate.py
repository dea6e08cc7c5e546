"""The stage `annotate`: pools runs, lets an ensemble of re-rankers choose from the pool, and writes pages on which people judge the choice.

This is how DuReader-retrieval found the false negatives of its development and testing sets (Qiu et al. 2022, section 2.3 and appendix
A.1). The pool is a run in the work folder of the output, which `rerank` scores there once for each model.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydense.construction.package import Page, write_packages
from raydense.construction.pooling import Pooled, PooledRuns
from raydense.construction.ranked import first_to_judge
from raydense.construction.settings import AnnotateSettings
from raydense.data.lookup import IdLookup
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import commit_table, query_positions, read_table
from raydense.errors import InputError
from raydense.evaluation.runs import Places
from raydense.inference.rerank import loss_of, ordered, probability, rerank, warn_of_loss
from raydense.inference.settings import RerankSettings
from raydense.mining.negatives import Positives
from raydense.models.cross_encoder import refuse_untrained
from raydense.runtime.progress import Progress, say
from raydense.storage import (
    WORK,
    Artifact,
    Draft,
    check_made_with,
    folders_by_name,
    provenance,
    releases_outputs,
)

SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("passage_id", pa.string()),
        ("query", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("score", pa.float64()),
        ("found", pa.list_(pa.struct([("run", pa.string()), ("rank", pa.int32())]))),
        ("judged", pa.int32()),
        ("same_text_as", pa.string()),
        ("package", pa.int32()),
        ("kind", pa.string()),
    ]
)
"""The columns of `pairs-*.parquet`. `judged` is the relevance that the qrels have, null if they have none; `same_text_as` the passage whose
text a pair repeats, null for a pair to judge; `package` the number of its package, null for a repeat; `kind` is "pooled".
"""


@releases_outputs
def annotate(settings: AnnotateSettings) -> Artifact:
    """Pairs to judge: of each query judged in `qrels` the first `keep` passages of the pool of the first `depth` of each run.

    The score of a pair is the mean over the models of the probability, the sigmoid of a model's score. (Appendix A.1 averages "prediction
    scores"; logits of models that were trained apart are on different scales, and one would outweigh the others.) Without a model it is
    the sum over the runs of 1 / (60 + rank). Pairs come by query in the order of `qrels`, then score falling, then corpus row rising.
    A passage whose text is that of a known positive, or of a passage before it, is listed with `same_text_as` and not asked; it takes no
    place among the `keep`. The artifact has `pairs-*.parquet` (`SCHEMA`) and the packages of `write_packages`, which show nothing of
    what is judged already. InputError on a model that is no trained re-ranker, an unknown query or passage, or runs without a judged
    query.
    """
    made_from = provenance("annotate", settings)
    runs, models = folders_by_name(settings.run, "run"), folders_by_name(settings.model, "model")
    for name, folder in models.items():
        refuse_untrained(folder)
        warn_of_loss("annotate", f"re-ranker {name}", loss_of(folder))
    draft = Draft.open(settings.output, "annotation", made_from)
    if draft.done:
        return draft.done
    judged = _JudgedQueries(settings, runs)
    pool = _pool(draft, made_from, judged)
    scored = [_scored(settings, draft, pool, number, folder) for number, folder in enumerate(models.values())]
    _commit_pairs(settings, draft, judged, [Places(judged.lookup, one) for one in scored])
    packages = write_packages(draft, _asked(draft), settings.package, Page(review=settings.review, seed=settings.seed))
    summary = _sum_up(draft, judged, pool, packages) | {
        "runs": judged.pool.names,
        "models": {name: one.summary["model"] for name, one in zip(models, scored, strict=True)},
        "scores": "probability" if models else "reciprocal rank",
        "corpus": judged.store.fingerprint,
    }
    made = draft.finish(summary["pairs"], **summary)
    _say_next(settings)
    return made


def _say_next(settings: AnnotateSettings) -> None:
    """Say who judges which pages, and the command that applies the answers."""
    words = ["raydense", "adjudicate", "--annotation", settings.output, "--qrels", settings.qrels, "--judgements", "ANSWERS"]
    pages = "package-*.html"
    if settings.review:
        pages, words = f"{pages} and others review-*.html", [*words, "--reviews", "REVIEWS"]
    say(f"annotate: people judge {pages}; then: {shlex.join([*words, '--output', 'NEW'])}")


class _JudgedQueries:
    """The judged queries, in the order of the qrels, with what is known of them, and the runs to pool."""

    def __init__(self, settings: AnnotateSettings, runs: dict[str, str]) -> None:
        qrels = read_table(settings.qrels, "qrels")
        queries = read_table(settings.queries, "queries", ["query_id", "text"])
        self.store = PassageStore(settings.corpus)
        self.positives = Positives.of(qrels, self.store, settings.qrels)
        self.store.say_lacking("annotate", self.positives.lacking, len(qrels), settings.qrels)
        qrels = self.store.known_judgements(qrels, settings.qrels)
        self.query_ids: pa.Array = self.positives.query_ids
        self.texts = queries["text"].take(pa.array(query_positions(self.query_ids, queries, settings.qrels))).combine_chunks()
        self.lookup = IdLookup(self.query_ids)
        self.pool = PooledRuns(runs, self.query_ids, self.store, settings.depth, settings.qrels)
        row = self.store.rows_of(qrels["passage_id"])
        pairs = self.lookup.positions_of_rows(qrels["query_id"]) * len(self.store) + row
        order = np.argsort(pairs, kind="stable")
        self._pairs, self._relevance = pairs[order], qrels["relevance"].to_numpy()[order]

    def relevance(self, query: Rows, row: Rows) -> pa.Array:
        """What the qrels say of each pair, int32 [n]; null where they say nothing."""
        if not len(self._pairs):
            return pa.nulls(len(query), pa.int32())
        wanted = query * len(self.store) + row
        at = np.minimum(np.searchsorted(self._pairs, wanted), len(self._pairs) - 1)
        return pa.array(self._relevance[at], pa.int32(), mask=self._pairs[at] != wanted)

    def known(self, numbers: Rows) -> tuple[Rows, Rows, NDArray[np.uint64]]:
        """Query, row and text hash of the known positives of some queries."""
        row, at = self.positives.lists(numbers)
        return numbers[at], row, np.asarray(self.store.text_hash[row])


def _pool(draft: Draft, made_from: dict[str, Any], judged: _JudgedQueries) -> Artifact:
    """The pool as a run in the order of its reciprocal ranks, in the work folder of the output."""
    pool = Draft.open(draft.place / WORK / "pool", "run", {**made_from, "part": "pool"})
    if pool.done:
        return pool.done
    there = pool.committed()
    with Progress("annotate", int((judged.pool.hits > 0).sum()), "queries") as progress:
        for number, numbers in enumerate(judged.pool.blocks()):
            name = f"run-{number:05d}.parquet"
            if name not in there:
                found = judged.pool.pooled(numbers)
                ids = judged.query_ids.take(pa.array(found.query)), judged.store.ids(found.row)
                commit_table(pool, name, ordered(*ids, found.row, found.reciprocal.astype(np.float32)))
            progress.add(len(numbers))
    return pool.finish(sum(file.rows for file in pool.committed().values()), queries=int((judged.pool.hits > 0).sum()))


def _scored(settings: AnnotateSettings, draft: Draft, pool: Artifact, number: int, model: str) -> Artifact:
    """The scores of one model, in the work folder of the output; InputError if an input is no longer the one that the stage began with."""
    scored = rerank(_scoring(settings, pool, model, str(draft.place / WORK / f"scores-{number}")))
    begun = draft.made_from["inputs"]
    check_made_with(scored, "model", model, begun["model"][number])
    check_made_with(scored, "corpus", settings.corpus, begun["corpus"])
    check_made_with(scored, "queries", settings.queries, begun["queries"])
    return scored


def _scoring(settings: AnnotateSettings, pool: Artifact, model: str, output: str) -> RerankSettings:
    """The settings of `rerank` for the scores of one model, of all that was pooled."""
    shared = {"corpus", "queries", "concurrency", "gpus_per_actor", "accelerator", "cpus_per_actor", "background", "token_budget", "block"}
    given = {name: getattr(settings, name) for name in shared}
    return RerankSettings(output=output, run=pool.located, model=model, depth=settings.depth * len(settings.run), **given)


def _commit_pairs(settings: AnnotateSettings, draft: Draft, judged: _JudgedQueries, scored: list[Places]) -> None:
    """Commit the pairs of each block of queries, with its counts in the note."""
    for places in scored:
        places.find()
    there, asked = draft.committed(), 0
    for number, numbers in enumerate(judged.pool.blocks()):
        name = f"pairs-{number:05d}.parquet"
        if name in there:
            asked += there[name].note["asked"]
            continue
        found = judged.pool.pooled(numbers)
        score = _mean_probability(found, scored, judged, numbers) if scored else found.reciprocal
        table = _pairs(settings, judged, found, score, numbers, asked)
        fresh = table.filter(pc.is_null(table["same_text_as"]))
        positive = int(pc.sum(pc.greater_equal(fresh["judged"], 1)).as_py() or 0)
        draft.commit(name, partial(_write, table=table), len(table), asked=len(fresh), positives=positive)
        asked += len(fresh)


def _write(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd")


def _mean_probability(found: Pooled, scored: list[Places], judged: _JudgedQueries, numbers: Rows) -> NDArray[np.float64]:
    """The mean over the models of the sigmoid of their scores of a pool, float64 [n]."""
    total = np.zeros(len(found.row))
    for places in scored:
        hits = places.rows_of(numbers)
        query, row = judged.lookup.positions_of_rows(hits["query_id"]), judged.store.rows_of(hits["passage_id"])
        order = np.lexsort((row, query))  # the order of a pool
        if not (np.array_equal(query[order], found.query) and np.array_equal(row[order], found.row)):
            raise InputError("has not the pairs of the pool", places.artifact.located, "delete the output and make it again")
        total += probability(hits["score"].to_numpy()[order])
    return total / len(scored)


def _pairs(
    settings: AnnotateSettings, judged: _JudgedQueries, found: Pooled, score: NDArray[np.float64], numbers: Rows, before: int
) -> pa.Table:
    """The pairs of some queries; `before` pairs to judge come before them."""
    text_hash = np.asarray(judged.store.text_hash[found.row])
    kept = first_to_judge(found.query, found.row, score, text_hash, judged.known(numbers), settings.keep)
    query, row, asked = found.query[kept.at], found.row[kept.at], kept.like < 0
    passages = judged.store.take(row, ["passage_id", "title", "text"])
    package = (before + np.cumsum(asked) - 1) // settings.package
    columns = {
        "query_id": judged.query_ids.take(pa.array(query)),
        **{name: passages[name] for name in passages.column_names},
        "query": judged.texts.take(pa.array(query)),
        "score": score[kept.at],
        "found": _found_by(judged.pool.names, found.rank[:, kept.at]),
        "judged": judged.relevance(query, row),
        "same_text_as": pc.if_else(pa.array(asked), None, judged.store.ids(np.maximum(kept.like, 0))),
        "package": pa.array(package, pa.int32(), mask=~asked),
        "kind": pa.repeat("pooled", len(row)),
    }
    return pa.table({name: columns[name] for name in SCHEMA.names}).cast(SCHEMA)


def _found_by(names: list[str], rank: NDArray[np.int32]) -> pa.Array:
    """The runs that have each passage, with its rank there, in the order of the runs; `rank` is [runs, n], 0 where a run lacks it."""
    pair, run = np.nonzero(rank.T)
    which = pa.DictionaryArray.from_arrays(pa.array(run, pa.int32()), names).cast(pa.string())
    offsets = np.concatenate([[0], np.cumsum((rank > 0).sum(axis=0))])
    found = pa.StructArray.from_arrays([which, pa.array(rank.T[pair, run], pa.int32())], ["run", "rank"])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), found)


def _asked(draft: Draft) -> Iterator[pa.Table]:
    """The pairs to judge, a committed file at a time."""
    for name in sorted(file for file in draft.committed() if file.startswith("pairs-")):
        table = pq.read_table(draft.read(name))
        yield table.filter(pc.is_null(table["same_text_as"]))


def _sum_up(draft: Draft, judged: _JudgedQueries, pool: Artifact, packages: list[dict[str, Any]]) -> dict[str, Any]:
    files = [file for name, file in draft.committed().items() if name.startswith("pairs-")]
    pairs, asked = sum(file.rows for file in files), sum(file.note["asked"] for file in files)
    positives, met = sum(file.note["positives"] for file in files), int((judged.pool.hits > 0).sum())
    missing = len(judged.query_ids) - met
    say(
        f"annotate: {pool.rows:,} pairs pooled of {met:,} queries, {asked:,} to judge in {len(packages):,} packages,"
        f" {positives:,} of them known positives; {pairs - asked:,} repeat a text and are not asked; {pool.rows - pairs:,} left out"
        + (f"; {missing:,} judged queries are in no run" if missing else "")
    )
    counts = {"queries": met, "missing": missing, "pooled": pool.rows, "pairs": pairs, "asked": asked, "repeats": pairs - asked}
    return counts | {"positives": positives, "packages": packages}
