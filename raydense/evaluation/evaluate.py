"""Runs against judgements: metrics.json, the values of each query, and a report to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense import storage
from raydense.data.artifact import Artifact, Draft, named_folder, provenance
from raydense.data.store import PassageStore
from raydense.data.tables import concat_parts, query_positions, query_starts, read_table
from raydense.errors import InputError
from raydense.evaluation.answers import answers_of, first_answer_ranks, matchers_of
from raydense.evaluation.depths import by_depth
from raydense.evaluation.metrics import Judgements, trec_order
from raydense.evaluation.report import write_report
from raydense.evaluation.runs import MeasuredRun
from raydense.evaluation.significance import SAMPLES, compare_all
from raydense.evaluation.similarity import similarities
from raydense.progress import say
from raydense.settings import EvaluateSettings

_COLUMNS = ["query_id", "passage_id", "rank", "score"]


def evaluate(settings: EvaluateSettings) -> Artifact:
    """Measure runs; returns a report artifact with metrics.json, per_query.parquet and report.html, a row a judged query.

    Means are over all judged queries; those that a run lacks count 0, as in `trec_eval -c`. `summary["result"]` is the object
    of metrics.json: {"metrics", "queries"} for one run, {"runs": {name: ...}, "significance"} for several. With them come, where
    the inputs allow, "depths" (`by_depth`) and "similarity" (`similarities`). The same inputs give the same bytes. Raises
    InputError on an unknown metric, a name used twice, or what answers need and is missing.
    """
    folders = named_folders(settings.run, "run")
    named_models = named_folders(settings.models, "models")
    draft = Draft.open(settings.output, "report", provenance("evaluate", settings))
    if draft.done:
        return draft.done
    models = {name: storage.local(folder) for name, folder in named_models.items()}
    qrels = read_table(settings.qrels, "qrels")
    judgements = Judgements(qrels, settings.metrics, settings.qrels)
    queries = read_table(settings.queries, "queries") if settings.queries else None
    if queries is not None:
        query_positions(qrels["query_id"], queries, settings.qrels)
    runs = [_measure(name, folder, judgements, queries, settings) for name, folder in folders.items()]
    result = result_of(runs, len(judgements.query_ids)) | _analysis(settings, runs, judgements, queries, models)
    draft.commit("metrics.json", lambda path: path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n"), 0)
    draft.commit(
        "per_query.parquet",
        lambda path: pq.write_table(_per_query(runs, judgements.query_ids), path),
        len(runs) * len(judgements.query_ids),
    )
    draft.commit("report.html", lambda path: write_report(path, settings, runs, judgements, queries, models, result), 0)
    return draft.finish(len(judgements.query_ids), result=result)


def named_folders(items: list[str], key: str) -> dict[str, str]:
    """The folders of a list of `folder` or `NAME=folder`, by name; InputError where two have the same name."""
    named: dict[str, str] = {}
    for name, folder in map(named_folder, items):
        if name in named:
            raise InputError(f"the name {name!r} is there twice", key, "write NAME=folder, each with another name")
        named[name] = folder
    return named


def _measure(name: str, folder: str, judgements: Judgements, queries: pa.Table | None, settings: EvaluateSettings) -> MeasuredRun:
    artifact = Artifact.open(folder, "run")
    judged = [_judged(part, judgements.query_ids) for part in artifact.parts(".parquet")]
    run = pa.concat_tables(judged) if judged else concat_parts([], "run")
    measured = judgements.measure(run, folder)
    answers = None if settings.answers == "none" else _answers(run, judgements.query_ids, queries, settings)
    values = ", ".join(f"{metric} {value:.4f}" for metric, value in measured.means.items())
    missing = f"; {measured.unanswered:,} of them have no hit and count 0" if measured.unanswered else ""
    say(f"evaluate: {name}: {values} over {len(judgements.query_ids):,} queries{missing}")
    return MeasuredRun(name, artifact, trec_order(run, judgements.query_ids), measured, answers)


def _judged(part: Path, query_ids: pa.Array) -> pa.Table:
    table = pq.read_table(part, columns=_COLUMNS)
    return table.filter(pc.is_in(table["query_id"], value_set=query_ids))


def _answers(run: pa.Table, query_ids: pa.Array, queries: pa.Table | None, settings: EvaluateSettings) -> dict[str, Any]:
    """Top-k answer accuracy over the judged queries that have answers, hits in the order of their ranks."""
    if queries is None or settings.corpus is None or settings.answers == "none":
        missing = "queries" if queries is None else "corpus"
        raise InputError("missing", missing, f"answers {settings.answers} needs it")
    asked = answers_of(queries.filter(pc.is_in(queries["query_id"], value_set=query_ids)), settings.queries)
    run = run.filter(pc.less_equal(run["rank"], max(settings.answer_k)))
    run = run.append_column("query", pc.index_in(run["query_id"], value_set=asked["query_id"].combine_chunks()))
    run = run.filter(pc.is_valid(run["query"])).sort_by([("query", "ascending"), ("rank", "ascending")])
    store = PassageStore(settings.corpus)
    rows, edges = store.known_rows(run["passage_id"], settings.run[0]), query_starts(run["query_id"])
    hits = [rows[:0]] * asked.num_rows
    for query, start, stop in zip(run["query"].to_numpy()[edges[:-1]], edges[:-1], edges[1:], strict=True):
        hits[query] = rows[start:stop]
    ids = asked["query_id"].to_pylist()
    matchers, given_up = matchers_of(settings.answers, asked["answers"].to_pylist(), ids, settings.queries)
    ranks = first_answer_ranks(hits, matchers, lambda some: store.take(some, ["text"])["text"].to_pylist())
    accuracy = {f"top-{k}": float(np.mean((ranks > 0) & (ranks <= k))) for k in sorted(set(settings.answer_k))}
    if given_up:
        say(f"evaluate: gave up {len(given_up):,} answer expressions that searched too long, the first is {min(given_up)!r}")
    return {"match": settings.answers, "accuracy": accuracy, "queries": len(ids), "expressions_given_up": len(given_up)}


def result_of(runs: list[MeasuredRun], queries: int) -> dict[str, Any]:
    """The object of metrics.json."""
    each: dict[str, dict[str, Any]] = {}
    for run in runs:
        each[run.name] = {"metrics": run.measured.means, "queries": queries}
        if run.answers:
            each[run.name]["answers"] = run.answers
    if len(runs) == 1:
        return each[runs[0].name]
    return {"runs": each, "significance": significance_of(runs)}


def _analysis(
    settings: EvaluateSettings, runs: list[MeasuredRun], judgements: Judgements, queries: pa.Table | None, models: dict[str, Path]
) -> dict[str, Any]:
    """What only some inputs tell of."""
    found = {"depths": by_depth(runs, judgements)}
    if queries is not None and settings.corpus is not None:
        found["similarity"] = similarities(runs, models, judgements, queries, PassageStore(settings.corpus))
    return {name: of for name, of in found.items() if of}


def significance_of(runs: list[MeasuredRun]) -> dict[str, Any]:
    """Each run against the first, by each metric; the randomisation p-values are corrected together, by Holm."""
    first = runs[0].measured.per_query
    found = compare_all({run.name: {m: (run.measured.per_query[m], first[m]) for m in first} for run in runs[1:]})
    return {
        "compared_with": runs[0].name,
        "tests": f"paired, two-sided: Student's t-test; randomisation test with {SAMPLES:,} sign flips",
        "correction": "Corrected p (p_holm): that of the randomisation test, corrected by Holm for"
        f" {len(first) * (len(runs) - 1)} comparisons",
        "runs": found,
    }


def _per_query(runs: list[MeasuredRun], query_ids: pa.Array) -> pa.Table:
    tables = []
    for run in runs:
        columns = {metric: pa.array(values) for metric, values in run.measured.per_query.items()}
        tables.append(pa.table({"run": pa.array([run.name] * len(query_ids)), "query_id": query_ids, **columns}))
    return pa.concat_tables(tables)
