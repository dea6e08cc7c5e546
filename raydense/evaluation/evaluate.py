"""Runs against judgements, or by the answers that they hold: metrics.json, the values of each query, and a report to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.data.answers import answers_of
from raydense.data.store import PassageStore
from raydense.data.tables import query_positions, read_table
from raydense.errors import InputError
from raydense.evaluation.answers import AnswerSearch
from raydense.evaluation.depths import by_depth
from raydense.evaluation.halves import by_halves
from raydense.evaluation.metrics import Judgements, Measured, Measuring
from raydense.evaluation.report import write_report
from raydense.evaluation.runs import MeasuredQueries, MeasuredRun, Places
from raydense.evaluation.settings import EvaluateSettings, SimilaritySettings
from raydense.evaluation.significance import BY_NORMAL, compare_all, flips_for
from raydense.evaluation.similarity import similarities
from raydense.evaluation.truncation import cut_deeper_than, most_held
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, Place, folders_by_name, provenance, releases_outputs


@releases_outputs
def evaluate(settings: EvaluateSettings) -> Artifact:
    """Measure runs; returns a report artifact with metrics.json, per_query.parquet and report.html, one row per query that counts.

    Means are over all judged queries; those that a run lacks count 0, as in `trec_eval -c`. With `answers` the metrics also have top-1
    and so on, answer accuracy over those judged queries that have answers; without qrels these alone, over all queries that have
    answers. `summary["result"]` is the object of metrics.json: {"metrics", "queries"} for one run, {"runs": {name: ...}, "significance"} for
    several. With them come, where the inputs allow, "halves" (`by_halves`), "depths" (`by_depth`) and "similarity" (`similarities`). The same inputs give the same bytes.
    """
    folders = folders_by_name(settings.run, "run")
    named_models = folders_by_name(settings.models, "models")
    draft = Draft.open(settings.output, "report", provenance("evaluate", settings))
    if draft.done:
        return draft.done
    models = {name: Place.of(folder).local() for name, folder in named_models.items()}
    queries = read_table(settings.queries, "queries") if settings.queries else None
    asked = _asked(settings, queries)
    runs = [_measure(name, folder, asked, queries, settings) for name, folder in folders.items()]
    result = result_of(runs, len(asked.query_ids)) | _analysis(settings, runs, asked.judgements, queries, models)
    metrics = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    draft.commit("metrics.json", lambda path: path.write_text(metrics, encoding="utf-8"), 0)
    draft.commit(
        "per_query.parquet",
        lambda path: pq.write_table(_per_query(runs, asked.query_ids), path),
        len(runs) * len(asked.query_ids),
    )
    draft.commit("report.html", lambda path: write_report(path, settings, runs, asked, queries, models, result), 0)
    return draft.finish(len(asked.query_ids), result=result)


def _asked(settings: EvaluateSettings, queries: pa.Table | None) -> MeasuredQueries:
    """The queries that count; InputError where `queries` lack a judged one, or no query has an answer."""
    if settings.qrels is None:
        assert queries is not None  # as answers need them
        return MeasuredQueries(answers_of(queries, settings.queries)["query_id"].combine_chunks(), None)
    judgements = Judgements(read_table(settings.qrels, "qrels"), settings.metrics, settings.qrels)
    if queries is not None:
        query_positions(judgements.query_ids, queries, settings.qrels)
    if without := len(judgements.query_ids) - len(judgements.with_positive):
        say(f"evaluate: {without:,} of the {len(judgements.query_ids):,} judged queries have no positive, and count 0 in most metrics")
    return MeasuredQueries(judgements.query_ids, judgements)


def _measure(name: str, folder: str, asked: MeasuredQueries, queries: pa.Table | None, settings: EvaluateSettings) -> MeasuredRun:
    artifact = Artifact.open(folder, "run")
    if settings.corpus is not None:
        PassageStore(settings.corpus).refuse_rows_of_another(artifact)
    metrics = Measuring(asked.judgements, folder) if asked.judgements else None
    answers = None if queries is None or settings.answers is None else _answer_search(asked, queries, settings, folder)
    places = Places(asked.lookup, artifact)
    with Progress("evaluate", artifact.rows, "hits") as progress:
        for block in places.blocks(progress):
            for part in (metrics, answers):
                if part:
                    part.add(block)
    if artifact.rows and not places.count.any():
        what = f"has no query of the {len(asked.query_ids):,} that are measured"
        raise InputError(what, folder, f"give the run of the queries of {settings.qrels or settings.queries}")
    summary, measured = _result(asked, metrics, answers)
    values = ", ".join(f"{metric} {value:.4f}" for metric, value in measured.means.items())
    missing = f"; {measured.unanswered:,} of them have no hit and count 0" if measured.unanswered else ""
    say(f"evaluate: {name}: {values} over {len(asked.query_ids):,} queries{missing}")
    judged = [measured.means[str(measure)] for measure in asked.judgements.measures] if asked.judgements else []
    if judged and artifact.rows and not any(judged):
        say(f"evaluate: {name}: all of it is 0: see that the judgements name its passages; `split` names those of document D D-0, D-1, ...")
    most = most_held(places.count)
    short = cut_deeper_than(most, measured.means) if most else []
    if short:
        say(f"evaluate: {name}: {', '.join(short)} count at most {most:,} passages of each query, as the run holds no more")
    return MeasuredRun(name, artifact, measured, summary, places, most if short else None)


def _result(asked: MeasuredQueries, metrics: Measuring | None, answers: AnswerSearch | None) -> tuple[dict[str, Any] | None, Measured]:
    """What metrics.json has of the answers, and all that was measured: by judgements, by answers, or both."""
    if answers is None:
        assert metrics is not None  # as settings without qrels have answers
        return None, metrics.result()
    summary, accuracy = answers.result()
    if metrics is None:
        return summary, accuracy
    return summary, metrics.result().with_others(accuracy, asked.lookup.positions(answers.query_ids))


def _answer_search(asked: MeasuredQueries, queries: pa.Table, settings: EvaluateSettings, run: str) -> AnswerSearch:
    """For those of the queries asked that have answers."""
    assert settings.answers is not None
    answered = answers_of(queries.filter(pc.is_in(queries["query_id"], value_set=asked.query_ids)), settings.queries)
    return AnswerSearch(settings.answers, answered, PassageStore(str(settings.corpus)), run)


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
    settings: EvaluateSettings, runs: list[MeasuredRun], judgements: Judgements | None, queries: pa.Table | None, models: dict[str, Path]
) -> dict[str, Any]:
    """The parts of the report that need further inputs."""
    if judgements is None:
        return {}
    found = {"halves": by_halves(runs, judgements, [*settings.trained_on.values()])} if settings.trained_on else {}
    found["depths"] = by_depth(runs, judgements)
    if queries is not None and settings.corpus is not None:
        wanted = settings.similarity or SimilaritySettings()
        found["similarity"] = similarities(runs, models, judgements, queries, PassageStore(settings.corpus), wanted)
    return {name: of for name, of in found.items() if of}


def significance_of(runs: list[MeasuredRun]) -> dict[str, Any]:
    """Each run against the first, by each metric; the randomisation p-values are corrected together, by Holm."""
    first = runs[0].measured.per_query
    others = {run.name: run.measured.per_query for run in runs[1:]}
    found = compare_all({name: {m: (values[m], first[m]) for m in first} for name, values in others.items()})
    comparisons = sum(map(len, found.values()))
    return {
        "compared_with": runs[0].name,
        "tests": f"paired, two-sided: Student's t-test; randomisation test with {flips_for(comparisons):,} sign flips, {BY_NORMAL}",
        "correction": f"Corrected p (p_holm): that of the randomisation test, corrected by Holm for {comparisons} comparisons",
        "runs": found,
    }


def _per_query(runs: list[MeasuredRun], query_ids: pa.Array) -> pa.Table:
    tables = []
    for run in runs:
        columns = {metric: pa.array(values, from_pandas=True) for metric, values in run.measured.per_query.items()}
        tables.append(pa.table({"run": pa.array([run.name] * len(query_ids)), "query_id": query_ids, **columns}))
    return pa.concat_tables(tables)
