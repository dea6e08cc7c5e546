"""The metrics of each run in two halves: of the queries that have a relevant passage which training has seen, and of the others.

A retriever is trained on pairs of a query and a relevant passage. If the passage is relevant to a test query, too, the retriever may find it
because it has learned the passage, not because it has learned to retrieve.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.store import Rows
from raydense.data.tables import positives_of, read_table
from raydense.evaluation.metrics import Judgements, mean_of
from raydense.evaluation.runs import MeasuredRun
from raydense.runtime.progress import say


def by_halves(runs: list[MeasuredRun], judgements: Judgements, train_qrels: list[str]) -> dict[str, Any]:
    """{"seen": {"queries", "runs": {name: metrics}}, "unseen": ..., "without_positive"}; a half of no queries has no runs.

    Seen are the queries that have a passage of relevance 1 or more which also has it for a query of `train_qrels`; unseen the others
    that have a passage of relevance 1 or more; queries without one are counted, and in neither half. The values of the queries are those
    of the runs, so nothing is measured again. A metric that is taken of no query of a half is left out of it.
    """
    seen, has_positive = _seen(judgements, train_qrels), judgements.positives > 0
    halves = {"seen": np.flatnonzero(has_positive & seen), "unseen": np.flatnonzero(has_positive & ~seen)}
    found: dict[str, Any] = {name: _half(runs, judgements, queries) for name, queries in halves.items()}
    return {**found, "without_positive": int((~has_positive).sum())}


def _half(runs: list[MeasuredRun], judgements: Judgements, queries: Rows) -> dict[str, Any]:
    of_runs = {run.name: _means(run, judgements, queries) for run in runs} if queries.size else {}
    return {"queries": len(queries), "runs": of_runs}


def _means(run: MeasuredRun, judgements: Judgements, queries: Rows) -> dict[str, float]:
    """The metrics of a run over some queries; those of answers over the ones that have answers."""
    measures = {str(measure): measure for measure in judgements.measures}
    values = {name: values[queries] for name, values in run.measured.per_query.items()}
    taken = {name: of[~np.isnan(of)] for name, of in values.items()}
    return {name: mean_of(of, measures.get(name)) for name, of in taken.items() if of.size}


def _seen(judgements: Judgements, train_qrels: list[str]) -> NDArray[np.bool_]:
    """Whether each query has a relevant passage that is relevant to a training query, too."""
    place, passages, relevance = judgements.judged(np.arange(len(judgements.query_ids)))
    place, passages = place[relevance >= 1], passages.filter(pa.array(relevance >= 1))
    seen, again = np.zeros(len(judgements.query_ids), bool), np.zeros(len(judgements.query_ids), bool)
    for folder in train_qrels:
        trained = positives_of(read_table(folder, "qrels"))
        seen[place[_among(passages, trained["passage_id"])]] = True
        again |= _among(judgements.query_ids, trained["query_id"])
    if again.any():
        say(
            f"evaluate: {again.sum():,} of the {len(again):,} judged queries are training queries themselves: a training has seen their labels"
        )
    return seen


def _among(ids: pa.Array, others: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Whether each of the `ids` is one of the others. The others may be many millions: they are looked up among the ids first, and never hashed."""
    shared = pc.unique(others.filter(pc.is_in(others, value_set=ids)))
    return pc.is_in(ids, value_set=shared).to_numpy(zero_copy_only=False)
