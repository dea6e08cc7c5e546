"""Metrics of a run against judgements, by ir-measures, with trec_eval's reading of ties and of queries without hits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.lookup import IdLookup
from raydense.data.store import Rows
from raydense.errors import InputError, did_you_mean
from raydense.evaluation.own_metrics import OUTSIDE, OwnMeasure, own_metric
from raydense.ranges import ranges

Values = NDArray[np.float64]
_HIGHEST_GRADE = 4  # of gdeval
_LARGEST_GRADE = 100_000  # of trec_eval, which counts the passages of each grade up to the highest
_NO_MEAN = "Accuracy"  # it has no value for a query whose hits are all relevant
_DEEPEST = 1_000_000  # hits of a query that a metric looks at
_OF_TRAININGS = {"mrr": "RR", "ndcg": "nDCG", "recall": "R"}  # the names in the log of a training
_MISSING_STEP = 4_096  # queries that a run lacks are measured together


@dataclass(frozen=True)
class Measured:
    """The metrics of one run: means, and the value of each query, float64 [queries]; NaN where a metric is not taken of a query."""

    means: dict[str, float]
    per_query: dict[str, Values]
    unanswered: int

    def with_others(self, others: Measured, queries: Rows) -> Measured:
        """These metrics and `others`, which were taken of some of the queries alone: those of these numbers."""
        spread = {name: np.full(len(next(iter(self.per_query.values()))), np.nan) for name in others.per_query}
        for name, values in others.per_query.items():
            spread[name][queries] = values
        return Measured(self.means | others.means, self.per_query | spread, self.unanswered)


def parse_metrics(names: list[str], key: str = "metrics") -> list[ir_measures.Measure]:
    """The measures of names as "nDCG@10"; InputError, at the setting `key`, that suggests the nearest known name."""
    if not names:
        raise InputError("no metric", key, "name some, as nDCG@10 RR@10 R@100")
    return list(dict.fromkeys(_parse_metric(name, key) for name in names))


def _parse_metric(name: str, key: str) -> ir_measures.Measure:
    word, at, cutoff = name.partition("@")
    if own := None if word in ir_measures.measures.registry else own_metric(name, key):
        _refuse_out_of_range(own, name, key)
        return own
    try:
        measure = ir_measures.parse_measure(f"{_OF_TRAININGS.get(word, word)}{at}{cutoff}")
        _refuse_out_of_range(measure, name, key)
        if ir_measures.DefaultPipeline.supports(measure):
            return measure
        if any(provider.supports(measure) for provider in ir_measures.DefaultPipeline.providers):
            raise InputError(f"{name!r} needs a package that is not installed, next to ir-measures", key, "choose another metric")
        raise InputError(
            f"no package of ir-measures takes {name!r} in this form", key, "give it other parameters, or choose another metric"
        )
    except NameError:
        word = name.partition("@")[0].partition("(")[0]
        known = {n.lower(): m.NAME for n, m in ir_measures.measures.registry.items() if n.isascii() and m.NAME != _NO_MEAN}
        known |= {name.lower(): name for name in OUTSIDE.installed}
        fix = did_you_mean(word.lower(), known)
        near = next((n for lower, n in known.items() if repr(lower) in fix), None)
        fix = f"did you mean {near + name[len(word) :]!r}?" if near else f"known: {', '.join(sorted(set(known.values())))}"
        raise InputError(f"unknown metric {name!r}", key, fix) from None
    except (ValueError, AssertionError, SyntaxError):
        raise InputError(f"cannot read metric {name!r}", key, "write it as ir-measures does: nDCG@10, R@100, P(rel=2)@5") from None


def _refuse_out_of_range(measure: ir_measures.Measure, name: str, key: str) -> None:
    """InputError on what ir-measures reads and the libraries below it cannot take: trec_eval's aborts the process at a cutoff of 0."""
    for parameter, most in (("cutoff", _DEEPEST), ("rel", _LARGEST_GRADE)):
        value = measure.params.get(parameter, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{name!r} has a {parameter} of {value}", key, f"give one from 1 to {most:,}")
    if measure.NAME == _NO_MEAN:
        raise InputError(f"{name!r} has no value for a query whose hits are all relevant", key, "choose another metric")


class Judgements:
    """Some qrels, and the measures to take against them.

    Ties and missing queries are read as trec_eval does: hits are ordered by score falling, equal scores by passage id falling
    (whatever the rank is), and a judged query that the run lacks counts 0 (its option -c). Queries that are not judged count
    nothing. ir-measures asks several libraries, which break ties differently, so they are given scores without ties.
    """

    def __init__(self, qrels: pa.Table, metrics: list[str], where: object, key: str = "metrics") -> None:
        self.measures = parse_metrics(metrics, key)
        self.own = [measure for measure in self.measures if isinstance(measure, OwnMeasure)]
        self.by_library = [measure for measure in self.measures if measure not in self.own]
        self.query_ids: pa.Array = pc.unique(qrels["query_id"])
        if not len(self.query_ids):
            raise InputError("no judgement", where, "give qrels that hold some")
        if pc.max(qrels["relevance"]).as_py() > _LARGEST_GRADE:
            what = (
                f"have a grade of {pc.max(qrels['relevance']).as_py():,}, and trec_eval's measures take memory for each up to the highest"
            )
            raise InputError(what, where, f"give grades of at most {_LARGEST_GRADE:,}")
        self.by_gdeval = any(ir_measures.gdeval.supports(measure) for measure in self.by_library)
        if self.by_gdeval and pc.max(qrels["relevance"]).as_py() > _HIGHEST_GRADE:
            what = (
                f"has a grade of {pc.max(qrels['relevance']).as_py()}, and ERR@k and nDCG(dcg='exp-log2')@k have grades to {_HIGHEST_GRADE}"
            )
            raise InputError(what, where, "leave them out")
        self._lookup = IdLookup(self.query_ids)
        query = self._lookup.positions_of_rows(qrels["query_id"])
        order = np.argsort(query, kind="stable")
        self._passages = qrels["passage_id"].combine_chunks().take(pa.array(order))
        self._relevance = qrels["relevance"].to_numpy()[order]
        self._edges = np.searchsorted(query[order], np.arange(len(self.query_ids) + 1))
        self._kept: tuple[Rows, Any] = (np.zeros(0, dtype=np.int64), None)
        self._numbers: dict[str, str] = {}

    def grades(self, query: int) -> dict[str, float]:
        """The relevance of each judged passage of query number `query`."""
        start, stop = self._edges[query], self._edges[query + 1]
        return dict(zip(self._passages[start:stop].to_pylist(), self._relevance[start:stop].tolist(), strict=True))

    def evaluator(self, queries: Rows) -> Any:
        """What takes the measures of the queries of these numbers; kept, as the same queries are measured with other weights or to other depths."""
        if not np.array_equal(queries, self._kept[0]):
            self._numbers = {}
            judged = self.numbered([self.grades(number) for number in queries.tolist()])
            names = map(str, queries.tolist())
            self._kept = queries, ir_measures.evaluator(self.by_library, dict(zip(names, judged, strict=True)))
        return self._kept[1]

    def numbered(self, of_queries: list[dict[str, float]]) -> list[dict[str, float]]:
        """Values by passage id, of each query, by number where gdeval is asked, which splits ids at blanks."""
        if not self.by_gdeval:
            return of_queries
        numbers = self._numbers
        return [{numbers.setdefault(id, str(len(numbers))): value for id, value in one.items()} for one in of_queries]

    def judged(self, queries: Rows) -> tuple[Rows, pa.Array, Rows]:
        """The judgements of the queries of these numbers: the place of each one's query in `queries`, the passage's id, and the relevance."""
        counts = self._edges[queries + 1] - self._edges[queries]
        place = np.repeat(np.arange(len(queries)), counts)
        at = ranges(self._edges[queries], counts)
        return place, self._passages.take(pa.array(at)), self._relevance[at]

    @property
    def positives(self) -> Rows:
        """How many passages of each query have relevance 1 or more, int64 [queries]."""
        return np.add.reduceat((self._relevance >= 1).astype(np.int64), self._edges[:-1])

    @property
    def with_positive(self) -> Rows:
        """The numbers of the queries that have a passage of relevance 1 or more, rising."""
        return np.flatnonzero(self.positives)

    def numbers(self, query_ids: pa.ChunkedArray) -> Rows:
        """The number of the query of each row, int64 [rows]; -1 if it is not judged."""
        return self._lookup.positions_of_rows(query_ids)

    def measure(self, run: pa.Table, where: object) -> Measured:
        """Measure one run (`query_id`, `passage_id`, `score`); InputError where it names a passage twice for a query."""
        measuring = Measuring(self, where)
        measuring.add(run)
        return measuring.result()


class Measuring:
    """Measures a run block after block; holds the values of each query, and no hits."""

    def __init__(self, judgements: Judgements, where: object) -> None:
        self._judgements, self._where = judgements, where
        self._values = {measure: np.zeros(len(judgements.query_ids)) for measure in judgements.measures}
        self._met = np.zeros(len(judgements.query_ids), dtype=bool)

    def add(self, run: pa.Table) -> None:
        """Measure some complete queries; InputError where a passage is named twice for one."""
        run, query = trec_order(run, self._judgements.numbers(run["query_id"]))
        if not len(query):
            return
        edges = _edges_of(query)
        queries = query[edges[:-1]]
        self._met[queries] = True
        passages, falling = run["passage_id"].to_pylist(), (-np.arange(1.0, np.diff(edges).max() + 1)).tolist()
        hits = [dict(zip(passages[a:b], falling, strict=False)) for a, b in pairwise(edges.tolist())]
        if sum(map(len, hits)) != len(passages):
            raise InputError(f"names passage {_twice(run)} twice for one query", self._where, "keep one")
        self._take(queries, hits)
        if self._judgements.own:
            scored = list(zip(passages, run["score"].to_pylist(), strict=True))
            self._take_own(queries, [scored[a:b] for a, b in pairwise(edges.tolist())])

    def _take_own(self, queries: Rows, hits: list[list[tuple[str, float]]]) -> None:
        """Take the metrics of a user of some queries that have hits."""
        for number, of_query in zip(queries.tolist(), hits, strict=True):
            query_id, judged = self._judgements.query_ids[number].as_py(), self._judgements.grades(number)
            for measure in self._judgements.own:
                self._values[measure][number] = measure.value(query_id, of_query, judged)

    def _take(self, queries: Rows, hits: list[dict[str, float]]) -> None:
        """Take the measures of some queries, which go by their numbers."""
        if not self._judgements.by_library:
            return
        evaluator, names = self._judgements.evaluator(queries), map(str, queries.tolist())
        for value in evaluator.iter_calc(dict(zip(names, self._judgements.numbered(hits), strict=bool(hits)))):
            self._values[value.measure][int(value.query_id)] = value.value

    def result(self) -> Measured:
        """The measures of all judged queries, with those that the run lacks."""
        missing = np.flatnonzero(~self._met)
        for start in range(0, len(missing), _MISSING_STEP):
            self._take(missing[start : start + _MISSING_STEP], [])
        for measure, values in self._values.items():  # what is of the judgements alone: ir-measures has 0
            if measure.NAME == "NumQ":
                values[missing] = 1
            elif measure.NAME == "NumRel":
                values[missing] = self._judgements.positives[missing]
        per_query = {str(measure): values for measure, values in self._values.items()}
        means = {str(measure): mean_of(values, measure) for measure, values in self._values.items()}
        return Measured(means, per_query, len(missing))


def mean_of(values: Values, measure: ir_measures.Measure | None = None) -> float:
    """The mean of the values of some queries; of a measure what it makes of them, as a few are sums."""
    if measure is None:
        return float(np.mean(values))
    aggregator = measure.aggregator()
    for number in values.tolist():
        aggregator.add(number)
    return float(aggregator.result())


def trec_order(run: pa.Table, query: Rows) -> tuple[pa.Table, Rows]:
    """The rows whose query has a number (not -1) and their numbers: by query, then score falling, then passage id falling.

    `query` int64 is the number of each row's query. Rows that are in order already keep their order of queries.
    """
    if (query < 0).any():
        run, query = run.filter(pa.array(query >= 0)), query[query >= 0]
    score, edges = run["score"].to_numpy(), _edges_of(query)
    falls = np.ones(len(query), dtype=bool)
    falls[1:] = score[1:] < score[:-1]
    falls[edges[:-1]] = True
    if falls.all() and len(np.unique(query[edges[:-1]])) == len(edges) - 1:
        return run, query
    keyed = pa.table({"query": query, "score": run["score"], "passage_id": run["passage_id"]})
    order = pc.sort_indices(keyed, [("query", "ascending"), ("score", "descending"), ("passage_id", "descending")])
    return run.take(order), query[order.to_numpy()]


def _edges_of(query: Rows) -> Rows:
    """Offsets of the first row of each query in rows grouped by query, and of the end of the last; int64 [queries + 1]."""
    starts = np.flatnonzero(np.append(True, query[1:] != query[:-1])) if len(query) else query
    return np.append(starts, len(query)).astype(np.int64)


def _twice(ranked: pa.Table) -> str:
    counts = ranked.group_by(["query_id", "passage_id"]).aggregate([([], "count_all")])
    row = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()[0]
    return f"{row['passage_id']!r} (query {row['query_id']!r})"
