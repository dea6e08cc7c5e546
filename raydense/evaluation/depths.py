"""A re-ranked run against its candidates, by the number of candidates that the re-ranker gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.evaluation.metrics import Judgements, Measuring
from raydense.evaluation.runs import MeasuredRun

_STEPS = (1, 2, 5)
_PAIR = ["query_id", "passage_id"]


def by_depth(runs: list[MeasuredRun], judgements: Judgements) -> dict[str, dict[str, Any]]:
    """For each run that is another of `runs` re-ranked: {"candidates": name, "depths": [{"depth", "candidates", "reranked"}]}.

    At depth d both hold the first d candidates of each query, in the retriever's order and in the re-ranker's; both have the
    means of the metrics over all judged queries. Depths are 1, 2, 5, 10 .. and the one that the run was made with.
    """
    of = {run.artifact.fingerprint: run for run in runs}
    found = {}
    for run in runs:
        made_from = run.artifact.manifest["made_from"]
        candidates = of.get(made_from["inputs"]["run"]) if made_from.get("stage") == "rerank" else None
        if candidates is not None:
            rows = _rows(_depths(int(made_from["settings"]["depth"])), run, candidates, judgements)
            found[run.name] = {"candidates": candidates.name, "depths": rows}
    return found


def _depths(most: int) -> list[int]:
    return [*(d for power in range(len(str(most))) for d in (step * 10**power for step in _STEPS) if d < most), most]


def _rows(depths: list[int], reranked: MeasuredRun, candidates: MeasuredRun, judgements: Judgements) -> list[dict[str, Any]]:
    """The row of each depth; both runs are read once, in blocks of the same queries."""
    measuring = [[Measuring(judgements, reranked.artifact) for _ in range(2)] for _ in depths]
    for queries in candidates.in_blocks():
        retrieved, again = candidates.places.rows_of(queries), reranked.places.rows_of(queries).select([*_PAIR, "score"])
        scored = again.join(retrieved.select([*_PAIR, "rank"]), _PAIR, join_type="inner")
        for depth, (by_rank, by_score) in zip(depths, measuring, strict=True):
            by_rank.add(_by_rank(retrieved.filter(pc.less_equal(retrieved["rank"], depth))))
            by_score.add(scored.filter(pc.less_equal(scored["rank"], depth)))
    means = [[each.result().means for each in pair] for pair in measuring]
    return [{"depth": depth, "candidates": both[0], "reranked": both[1]} for depth, both in zip(depths, means, strict=True)]


def _by_rank(run: pa.Table) -> pa.Table:
    """With scores that follow the ranks, which is the order that the re-ranker took them in, ties included."""
    return run.select(_PAIR).append_column("score", pa.array(-run["rank"].to_numpy().astype(np.float64)))
