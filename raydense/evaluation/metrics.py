"""Metrics of a run against judgements, by ir-measures, with trec_eval's reading of ties and of queries without hits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.tables import query_starts
from raydense.errors import InputError, did_you_mean

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """The metrics of one run: means over the judged queries, and the value of each query, float64 [queries]."""

    means: dict[str, float]
    per_query: dict[str, Values]
    unanswered: int


def parse_metrics(names: list[str]) -> list[ir_measures.Measure]:
    """The measures of names as "nDCG@10"; InputError that suggests the nearest known name."""
    if not names:
        raise InputError("no metric", "metrics", "name some, as nDCG@10 RR@10 R@100")
    return list(dict.fromkeys(_parse_metric(name) for name in names))


def _parse_metric(name: str) -> ir_measures.Measure:
    try:
        measure = ir_measures.parse_measure(name)
        if ir_measures.DefaultPipeline.supports(measure):
            return measure
        raise InputError(f"{name!r} needs a package that is not installed, next to ir-measures", "metrics", "choose another metric")
    except NameError:
        word = name.partition("@")[0].partition("(")[0]
        known = {n.lower(): m.NAME for n, m in ir_measures.measures.registry.items() if n.isascii()}
        fix = did_you_mean(word.lower(), known)
        near = next((n for lower, n in known.items() if repr(lower) in fix), None)
        fix = f"did you mean {near + name[len(word) :]!r}?" if near else f"known: {', '.join(sorted(set(known.values())))}"
        raise InputError(f"unknown metric {name!r}", "metrics", fix) from None
    except (ValueError, AssertionError, SyntaxError):
        raise InputError(f"cannot read metric {name!r}", "metrics", "write it as ir-measures does: nDCG@10, R@100, P(rel=2)@5") from None


class Judgements:
    """Some qrels, and the measures to take against them.

    Ties and missing queries are read as trec_eval does: hits are ordered by score falling, equal scores by passage id falling
    (whatever the rank is), and a judged query that the run lacks counts 0 (its option -c). Queries that are not judged count
    nothing. ir-measures asks several libraries, which break ties differently, so they are given scores without ties.
    """

    def __init__(self, qrels: pa.Table, metrics: list[str], where: object) -> None:
        self.measures = parse_metrics(metrics)
        self.query_ids: pa.Array = pc.unique(qrels["query_id"])
        if not len(self.query_ids):
            raise InputError("no judgement", where, "give qrels that hold some")
        order = pc.sort_indices(pc.index_in(qrels["query_id"], value_set=self.query_ids))
        qrels = qrels.take(order)
        self.judged = _by_query(qrels["query_id"], qrels["passage_id"].to_pylist(), qrels["relevance"].to_pylist())
        self._evaluator = ir_measures.evaluator(self.measures, self.judged)

    def measure(self, run: pa.Table, where: object) -> Measured:
        """Measure one run (`query_id`, `passage_id`, `score`); InputError where it names a passage twice for a query."""
        ranked = trec_order(run, self.query_ids)
        scores = -np.arange(1, ranked.num_rows + 1, dtype=np.float64)
        hits = _by_query(ranked["query_id"], ranked["passage_id"].to_pylist(), _within(ranked["query_id"], scores).tolist())
        if sum(map(len, hits.values())) != ranked.num_rows:
            raise InputError(f"names passage {_twice(ranked)} twice for one query", where, "keep one")
        position = {query: i for i, query in enumerate(self.query_ids.to_pylist())}
        per_query = {str(m): np.zeros(len(position)) for m in self.measures}
        aggregators = {str(m): m.aggregator() for m in self.measures}
        for value in self._evaluator.iter_calc(hits):
            per_query[str(value.measure)][position[value.query_id]] = value.value
        for name, values in per_query.items():
            for number in values.tolist():
                aggregators[name].add(number)
        means = {name: float(aggregator.result()) for name, aggregator in aggregators.items()}
        return Measured(means, per_query, len(position) - len(hits))


def trec_order(run: pa.Table, query_ids: pa.Array) -> pa.Table:
    """The hits of these queries, by query, then score falling, then passage id falling."""
    query = pc.index_in(run["query_id"], value_set=query_ids)
    run = run.append_column("query", query).filter(pc.is_valid(query))
    return run.sort_by([("query", "ascending"), ("score", "descending"), ("passage_id", "descending")])


def _by_query(query_id: pa.ChunkedArray, passages: list[str], values: list[float]) -> dict[str, dict[str, float]]:
    edges = query_starts(query_id)
    heads = query_id.take(pa.array(edges[:-1])).to_pylist()
    spans = pairwise(edges.tolist())
    return {query: dict(zip(passages[a:b], values[a:b], strict=True)) for query, (a, b) in zip(heads, spans, strict=True)}


def _within(query_id: pa.ChunkedArray, falling: Values) -> Values:
    edges = query_starts(query_id)
    return falling + np.repeat(edges[:-1], np.diff(edges))


def _twice(ranked: pa.Table) -> str:
    counts = ranked.group_by(["query_id", "passage_id"]).aggregate([([], "count_all")])
    row = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()[0]
    return f"{row['passage_id']!r} (query {row['query_id']!r})"
