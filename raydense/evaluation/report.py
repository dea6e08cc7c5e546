"""report.html: one file that needs no other, with the runs, their differences, curves, examples and where all came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
from markupsafe import Markup

from raydense.data.page_template import page_template
from raydense.data.store import PassageStore
from raydense.evaluation.curves import curve_svg, read_curves
from raydense.evaluation.examples import Reader, choose
from raydense.evaluation.runs import MeasuredQueries, MeasuredRun
from raydense.evaluation.settings import EvaluateSettings
from raydense.evaluation.table import halves_line, metrics_in
from raydense.storage import Place, fingerprint_of, read_manifest

_DEEPEST = 12


def write_report(
    path: Path,
    settings: EvaluateSettings,
    runs: list[MeasuredRun],
    asked: MeasuredQueries,
    queries: pa.Table | None,
    models: dict[str, Path],
    result: dict[str, Any],
) -> None:
    """Write the page to `path`; the same inputs give the same bytes, and nothing in it points outside."""
    measured = result.get("runs", {runs[0].name: result})
    page = {
        "title": settings.title,
        "queries": len(asked.query_ids),
        "judged": asked.judgements is not None,
        "metrics": metrics_in(measured.values()),
        "held": {run.name: run.most for run in runs if run.most},
        "runs": table_rows([run.name for run in runs], measured, result.get("significance")),
        "unanswered": {run.name: run.measured.unanswered for run in runs if run.measured.unanswered},
        "significance": result.get("significance"),
        "halves": halves_of(result.get("halves")),
        "depths": result.get("depths", {}),
        "similarity": result.get("similarity", {}),
        "curves": curves_of(models),
        "examples": examples_of(settings, runs, asked, queries),
        "provenance": provenance_of(settings, runs, models),
    }
    path.write_text(_template().render(page), encoding="utf-8")


def _template() -> jinja2.Template:
    def figure(value: float | None) -> str:
        return "–" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"

    def p(value: float | None) -> str:
        return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"

    return page_template("raydense.evaluation", "report.html.j2", {"figure": figure, "p": p})


def table_rows(names: list[str], measured: dict[str, Any], significance: dict[str, Any] | None) -> list[dict[str, Any]]:
    """One row per run: its metrics, each with whether it is the best and its significance mark, and how answers were matched."""
    metrics = metrics_in(measured.values())
    highest = {m: max(of["metrics"][m] for of in measured.values()) for m in metrics}
    rows = []
    for name in names:
        compared = (significance or {"runs": {}})["runs"].get(name, {})
        values = measured[name]["metrics"]
        cells = [
            {"value": values[m], "best": len(names) > 1 and values[m] == highest[m], "mark": significance_mark(compared.get(m))}
            for m in metrics
        ]
        rows.append({"name": name, "cells": cells, "answers": measured[name].get("answers"), "queries": measured[name]["queries"]})
    return rows


def halves_of(halves: dict[str, Any] | None) -> dict[str, Any] | None:
    """The line on how many queries training has seen passages of, and, where both halves have some, a row of metrics for each run: (seen, unseen)."""
    if halves is None:
        return None
    seen, unseen = halves["seen"], halves["unseen"]
    both = {run: (of, unseen["runs"][run]) for run, of in seen["runs"].items() if unseen["queries"]}
    metrics = list(dict.fromkeys(metric for pair in both.values() for of in pair for metric in of))
    rows = [{"name": run, "cells": [(of.get(m), others.get(m)) for m in metrics]} for run, (of, others) in both.items()]
    return {"line": halves_line(halves), "seen": seen["queries"], "unseen": unseen["queries"], "metrics": metrics, "rows": rows}


def significance_mark(comparison: dict[str, Any] | None) -> str:
    """An arrow for a difference that holds at 0.05 after correction, two for 0.01; else nothing."""
    if comparison is None or comparison["p_holm"] >= 0.05:
        return ""
    arrow = "▲" if comparison["difference"] > 0 else "▼"
    return arrow * 2 if comparison["p_holm"] < 0.01 else arrow


def curves_of(models: dict[str, Path]) -> list[dict[str, Any]]:
    """The curves of each model that has a history."""
    found = []
    for number, (name, folder) in enumerate(models.items()):
        series = read_curves(folder)
        charts = [
            {"name": key, "last": points[-1][1], "svg": Markup(curve_svg(points, key, f"c{number}-{place}"))}
            for place, (key, points) in enumerate(series.items())
        ]
        if charts:
            found.append({"name": name, "charts": charts})
    return found


def examples_of(settings: EvaluateSettings, runs: list[MeasuredRun], asked: MeasuredQueries, queries: pa.Table | None) -> dict[str, Any]:
    """Groups of example queries by the first metric: each other run against the first, or the best and worst of the only one."""
    store = PassageStore(settings.corpus) if settings.corpus else None
    reader = Reader(asked, queries, store, settings.answers is not None and settings.answers.match == "regex")
    metric = next(iter(runs[0].measured.means))
    groups: list[dict[str, Any]] = []
    first = runs[0].measured.per_query[metric]
    for run in runs[1:] or runs:
        alone = run is runs[0]
        shown = [run] if alone else [run, runs[0]]
        for heading, positions in choose(run.measured.per_query[metric], None if alone else first):
            title = f"{heading} of {run.name}" if alone else f"{heading} of {run.name} against {runs[0].name}"
            groups.append({"title": title, "examples": [reader.example(p, shown, metric) for p in positions]})
    return {"metric": metric, "groups": [g for g in groups if g["examples"]]}


def provenance_of(settings: EvaluateSettings, runs: list[MeasuredRun], models: dict[str, Path]) -> list[dict[str, Any]]:
    """A tree for each run and model: what it was made from, as far as the given folders record it."""
    folders: list[tuple[str, Place]] = [(run.name, run.artifact.place) for run in runs] + [
        (name, Place.of(path)) for name, path in models.items()
    ]
    folders += [(name, Place.of(getattr(settings, name))) for name in ("qrels", "queries", "corpus") if getattr(settings, name)]
    folders += [(f"train_qrels {name}".strip(), Place.of(path)) for name, path in settings.trained_on.items()]
    roots = [(name, fingerprint_of(folder), folder) for name, folder in folders]
    known = {fingerprint: (name, read_manifest(folder)) for name, fingerprint, folder in roots}
    return [node(fingerprint, name, known) for name, fingerprint, _ in roots]


def node(fingerprint: str, name: str, known: dict[str, tuple[str, dict[str, Any] | None]], depth: int = 0) -> dict[str, Any]:
    """One artifact of the tree; where only its fingerprint is known, it is a leaf."""
    known_as, manifest = known.get(fingerprint, ("", None))
    found: dict[str, Any] = {"name": name, "fingerprint": fingerprint, "kind": "", "facts": [], "inputs": []}
    if known_as and known_as != name:
        found["name"] = f"{name}: {known_as}"
    if manifest is None or depth > _DEEPEST:
        return found
    made_from = manifest["made_from"]
    settings = made_from.get("settings") or {}
    found["kind"] = manifest["kind"]
    found["facts"] = [("stage", made_from.get("stage", "")), ("rows", f"{manifest['rows']:,}"), *sorted(settings.items())]
    found["facts"].append(("made with", ", ".join(f"{k} {v}" for k, v in sorted(manifest["versions"].items()))))
    for key, value in sorted((made_from.get("inputs") or {}).items()):
        several = value if isinstance(value, list) else [value]
        found["inputs"] += [node(str(one), key, known, depth + 1) for one in several]
    return found
