"""The stage `adjudicate`: answers of people, or a re-ranker's probabilities, become judgements, with a report of what changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.construction.adjudication_report import before_and_after_svg, judges, write_report
from raydense.construction.agreement import agreements, refuse_below
from raydense.construction.annotator_answers import UNSURE, AnnotatorAnswer, read_answers, read_final
from raydense.construction.decisions import OPEN, Decided, Pair, applied, decide
from raydense.construction.package import COLUMNS
from raydense.construction.settings import AdjudicateSettings
from raydense.data.json_lines import write_json_lines
from raydense.data.store import Rows
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.evaluation.metrics import Judgements, Measuring
from raydense.evaluation.runs import MeasuredQueries, Places
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, folders_by_name, provenance, releases_outputs

METRICS = ["RR@10", "Success@1", "Success@50"]
"""Figure 2 of Qiu et al. 2022: MRR@10, Recall@1, Recall@50; its recall is the share of queries with a positive among the first k."""
_READ = ["query_id", "passage_id", "score", "judged", "same_text_as", "package"]


@releases_outputs
def adjudicate(settings: AdjudicateSettings) -> Artifact:
    """Qrels from those before and the decisions on the pairs of an annotation (Qiu et al. 2022, section 2.3).

    A package whose reviewers agree with less than `agreement` of it, on average, is refused. People decide by more than half of their
    answers for a pair: a relevant passage becomes a positive, an old positive that is not relevant gets relevance 0. A pair without such
    a majority, or whose majority is unsure, is written to `disputed.jsonl` and changes nothing, unless `final` decides it. With
    `threshold` pairs that nobody judged are relevant if the mean probability of the re-rankers is above it. The artifact is of kind
    qrels; `sources.pq` (Parquet) has for each of its rows the relevance before and the source: gold, human or model. `report.md` and the
    summary have the counts and, for each run, the metrics before and after. Shares and means are those of `judged_queries`: the queries of
    which people judged a pair, or with a threshold all that have pairs. InputError, with file and line, on answers that do not
    belong to this annotation; on qrels that `annotate` was not given; on a threshold for pairs that no re-ranker scored; where nobody
    judged or `final` decides nothing.
    """
    runs = folders_by_name(settings.run, "run")
    draft = Draft.open(settings.output, "qrels", provenance("adjudicate", settings))
    if draft.done:
        return draft.done
    annotation, qrels = _opened(settings)
    pairs = _pairs(annotation, _READ)
    places = dict(zip(zip(pairs["query_id"].to_pylist(), pairs["passage_id"].to_pylist(), strict=True), range(len(pairs)), strict=True))
    packages: list[dict[str, Any]] = annotation.summary["packages"]
    answers, reviews = _answers(settings, packages, pairs, places)
    agreed = agreements([one["name"] for one in packages], answers, reviews)
    refuse_below(agreed, settings.agreement, settings.annotation)
    final = _final(settings, pairs, places)
    if not (answers or final or settings.threshold is not None):
        raise InputError("have no answer", settings.judgements[0], "give the files that people downloaded after they judged")
    decided = decide(pairs, answers, final, settings.threshold, places)
    judged = applied(qrels, pairs, decided)
    people = np.array(sorted({places[answer.pair] for answer in answers} | {places[pair] for pair in final}), dtype=np.int64)
    summary = {"queries": len(pc.unique(qrels["query_id"])), **_counts(settings, pairs, judged, people, decided), "packages": agreed}
    summary["threshold"] = settings.threshold
    summary["not_judged"] = [one["name"] for one in packages if one["name"] not in agreed] if settings.judgements else []
    summary["runs"] = {name: _measured(name, folder, qrels, judged, settings.qrels) for name, folder in runs.items()}
    commit_table(draft, "qrels.parquet", judged)
    draft.commit("sources.pq", lambda path: pq.write_table(judged, path, compression="zstd"), len(judged))
    draft.commit("disputed.jsonl", partial(_write_disputed, annotation=annotation, answers=answers, decided=decided, places=places), 0)
    if summary["runs"]:
        draft.commit("before-and-after.svg", lambda path: path.write_text(before_and_after_svg(summary["runs"]), encoding="utf-8"), 0)
    draft.commit("report.md", partial(write_report, summary=summary), 0)
    _say(summary)
    return draft.finish(len(judged), **summary)


def _opened(settings: AdjudicateSettings) -> tuple[Artifact, pa.Table]:
    """The annotation and the qrels that it was made with."""
    annotation, qrels = Artifact.open(settings.annotation, "annotation"), Artifact.open(settings.qrels, "qrels")
    if annotation.manifest["made_from"]["inputs"].get("qrels") != qrels.fingerprint:
        raise InputError("are not the judgements that the annotation was made with", settings.qrels, "give those that `annotate` was given")
    if settings.threshold is not None and annotation.summary["scores"] != "probability":
        fix = "annotate with --model, or judge by people alone"
        raise InputError("has no probabilities for a threshold: no re-ranker scored its pairs", settings.annotation, fix)
    return annotation, read_table(settings.qrels, "qrels")


def _pairs(annotation: Artifact, columns: list[str]) -> pa.Table:
    return pa.concat_tables([pq.read_table(part, columns=columns) for part in annotation.parts(".parquet", "pairs-")])


def _answers(
    settings: AdjudicateSettings, packages: list[dict[str, Any]], pairs: pa.Table, places: dict[Pair, int]
) -> tuple[list[AnnotatorAnswer], list[AnnotatorAnswer]]:
    """The judgements and the reviews; InputError on a pair that its package does not have."""
    names = {one["fingerprint"]: one["name"] for one in packages}
    reviewed = {one["review"]["fingerprint"]: one["name"] for one in packages if "review" in one}
    answers = read_answers(settings.judgements, names, {of: f"the review of {name}" for of, name in reviewed.items()})
    reviews = read_answers(settings.reviews, reviewed, {of: f"{name}, not for its review" for of, name in names.items()})
    numbers, package = {one["name"]: number for number, one in enumerate(packages)}, pairs["package"].to_pylist()
    for answer in (*answers, *reviews):
        place = places.get(answer.pair)
        if place is None or package[place] != numbers[answer.package]:
            what = f"judges query {answer.pair[0]!r} and passage {answer.pair[1]!r}, which {answer.package} does not have"
            raise InputError(what, answer.where, "give the file as it was downloaded")
    return answers, reviews


def _final(settings: AdjudicateSettings, pairs: pa.Table, places: dict[Pair, int]) -> dict[Pair, tuple[int, str]]:
    """The decisions of `final`; InputError on a pair that the annotation lacks, and on a repeat, which gets what the pair gets that it repeats."""
    final, like = read_final(settings.final) if settings.final else {}, pairs["same_text_as"]
    if settings.final and not final:
        raise InputError("decides nothing: no line has relevance 1 or 0", settings.final, "fill in `relevance`, or leave --final out")
    for pair, (_, where) in final.items():
        if pair not in places:
            what = f"decides query {pair[0]!r} and passage {pair[1]!r}, which the annotation does not have"
            raise InputError(what, where, "give lines of disputed.jsonl")
        repeated = like[places[pair]].as_py()
        if repeated is not None:
            what = f"decides query {pair[0]!r} and passage {pair[1]!r}, which has the text of passage {repeated!r} and gets what that gets"
            raise InputError(what, where, "give lines of disputed.jsonl: it has no repeats")
    return final


def _counts(settings: AdjudicateSettings, pairs: pa.Table, judged: pa.Table, people: Rows, decided: Decided) -> dict[str, Any]:
    """What the summary says of pairs and judgements; `people` are the places of the pairs that people judged."""
    asked = int(pc.sum(pc.is_null(pairs["same_text_as"])).as_py() or 0)
    seen = pc.unique(pairs["query_id"] if settings.threshold is not None else pairs["query_id"].take(pa.array(people)))
    of_seen = judged.filter(pc.is_in(judged["query_id"], value_set=seen))
    relevant, before = _relevant(judged["relevance"]), _relevant(judged["before"])
    missed = judged.filter(pc.and_(relevant, pc.invert(before)))
    queries_missed = pc.sum(pc.is_in(seen, value_set=pc.unique(missed["query_id"]))).as_py() or 0
    return {
        "judged_queries": len(seen),
        "asked": asked,
        "judged": len(people),
        "disputed": len(decided.disputed),
        "decided": int((decided.relevance != OPEN).sum()),
        "false_negatives": len(missed),
        "by_source": {source: pc.sum(pc.equal(missed["source"], source)).as_py() or 0 for source in ("human", "model", "gold")},
        "queries_with_false_negatives": queries_missed,
        "share_of_queries": queries_missed / max(1, len(seen)),
        "relabelled": pc.sum(pc.and_(before, pc.invert(relevant))).as_py() or 0,
        "without_positive": len(pc.unique(judged["query_id"])) - len(pc.unique(judged.filter(relevant)["query_id"])),
        "positives_per_query": {
            key: (pc.sum(_relevant(of_seen[name])).as_py() or 0) / max(1, len(seen))
            for key, name in (("before", "before"), ("after", "relevance"))
        },
    }


def _relevant(relevance: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.greater_equal(relevance, 1), False)


def _measured(name: str, folder: str, before: pa.Table, after: pa.Table, where: str) -> dict[str, dict[str, float]]:
    """The metrics of one run by the judgements before and after."""
    run = Artifact.open(folder, "run")
    both = {key: Judgements(qrels, METRICS, where) for key, qrels in (("before", before), ("after", after))}
    measuring = {key: Measuring(judgements, folder) for key, judgements in both.items()}
    places = Places(MeasuredQueries(both["before"].query_ids, None).lookup, run)
    with Progress("adjudicate", run.rows, "hits") as progress:
        for block in places.blocks(progress):
            for one in measuring.values():
                one.add(block)
    if not places.count.any():
        raise InputError(f"has no query that {where} judge", folder, "give the run of these queries")
    found = {key: one.result().means for key, one in measuring.items()}
    changes = ", ".join(f"{metric} {value:.4f} -> {found['after'][metric]:.4f}" for metric, value in found["before"].items())
    say(f"adjudicate: {name}: {changes}")
    return found


def _write_disputed(path: Path, annotation: Artifact, answers: list[AnnotatorAnswer], decided: Decided, places: dict[Pair, int]) -> None:
    """The disputed pairs with their texts and answers, and `relevance` null, which `final` reads when it is filled in."""
    said: dict[int, dict[str, int | None]] = defaultdict(dict)
    for answer in answers:
        said[places[answer.pair]][answer.annotator] = None if answer.relevance == UNSURE else answer.relevance
    rows = _rows_at(annotation, decided.disputed.tolist())
    write_json_lines(path, ({**row, "answers": dict(sorted(said[place].items())), "relevance": None} for place, row in rows))


def _rows_at(annotation: Artifact, places: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The texts of the pairs at these rising places, a file at a time."""
    start, wanted = 0, np.array(places, dtype=np.int64)
    for part in annotation.parts(".parquet", "pairs-"):
        rows = pq.ParquetFile(part).metadata.num_rows
        here = wanted[(wanted >= start) & (wanted < start + rows)]
        if len(here):
            table = pq.read_table(part, columns=COLUMNS).take(pa.array(here - start))
            yield from zip(here.tolist(), table.to_pylist(), strict=True)
        start += rows


def _say(summary: dict[str, Any]) -> None:
    positives, left = summary["positives_per_query"], summary["asked"] - summary["judged"]
    by_text = f", {gold:,} of them by the text of a known positive" if (gold := summary["by_source"]["gold"]) else ""
    say(
        f"adjudicate: {summary['judged']:,} of {summary['asked']:,} pairs judged by people ({left:,} were not), {summary['disputed']:,} disputed;"
        f" {summary['false_negatives']:,} false negatives{by_text}; {summary['queries_with_false_negatives']:,} of {summary['judged_queries']:,} queries"
        f" judged by {judges(summary)} have some ({summary['share_of_queries']:.1%}); {summary['relabelled']:,} positives relabelled;"
        f" positives per query {positives['before']:.2f} -> {positives['after']:.2f}"
    )
    if (left_out := len(summary["not_judged"])) and summary["threshold"] is None:
        say(
            f"adjudicate: {left_out:,} packages are not judged yet, the first is {summary['not_judged'][0]}: the shares and means leave out"
            " queries of which nobody judged a pair"
        )
    few = [name for name, of in summary["packages"].items() if of["reviewers"] < 2]
    if few:
        say(f"adjudicate: fewer than two reviewers of {len(few):,} packages, the first is {few[0]}")
    if summary["without_positive"]:
        say(f"adjudicate: {summary['without_positive']:,} queries have no positive left, and count 0 in most metrics")
