"""The reports of several trials in one table: one row per variant, the mean and spread of each metric over its seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.evaluation.report import significance_mark
from raydense.evaluation.significance import BY_NORMAL, compare_all, flips_for
from raydense.evaluation.table import metrics_of, piped
from raydense.storage import Artifact

Reports = Mapping[str, Mapping[str, Artifact]]

_TESTS = (
    "Against the first variant: paired, two-sided randomisation test over queries ({} sign flips," + f" {BY_NORMAL}), the values of a query"
    " averaged over the seeds that both have, and corrected by Holm for all variants and metrics of a run. It shows whether these"
    " models differ on queries like these; the spread shows how much another seed would change them."
)


_LEGEND = "Mean ± sample standard deviation over the seeds; ▲ ▼ better or worse than the first row at 0.05, doubled at 0.01."


def summarise(reports: Reports) -> dict[str, Any]:
    """Summarises reports by variant and seed: {"compared_with", "tests", "runs": {run: {variant: row}}}.

    A row has its `seeds`, by each metric `mean`, `spread` (the sample standard deviation over the seeds; None for one seed) and
    `values` (one a seed), and for all variants but the first a `significance` as that of a report: {metric: comparison}.

    The seeds of one query are no independent observations: pooled, they would make any difference significant. So the values
    of a query are averaged over the seeds before the test, which has one pair per query.
    """
    names = {variant: _runs_of(of) for variant, of in reports.items() if of}
    first = next(iter(names), "")
    runs: dict[str, dict[str, Any]] = {}
    flips = set[int]()
    for run in dict.fromkeys(run for of_variant in names.values() for run in of_variant):
        runs[run] = {variant: _row(run, reports[variant]) for variant in names if run in names[variant]}
        if first in runs[run]:
            against = _per_query(run, reports[first])
            pairs = {variant: _pairs(_per_query(run, reports[variant]), against) for variant in runs[run] if variant != first}
            flips.add(flips_for(sum(map(len, pairs.values()))))
            for variant, found in compare_all(pairs).items():
                runs[run][variant]["significance"] = found
    tests = _TESTS.format(" or ".join(f"{number:,}" for number in sorted(flips or {flips_for(0)})))
    return {"compared_with": first, "tests": tests, "runs": runs}


def _runs_of(of: Mapping[str, Artifact]) -> list[str]:
    """The runs that the reports of a variant have."""
    each = (pq.read_table(report.file("per_query.parquet"), columns=["run"])["run"] for report in of.values())
    return list(dict.fromkeys(run for column in each for run in column.unique().to_pylist()))


def _per_query(run: str, of: Mapping[str, Artifact]) -> pd.DataFrame:
    """A row of one run for each seed and query, with the value of each metric. Read by runs, as all of a sweep take gigabytes."""
    there = pc.field("run") == run
    tables = {seed: pq.read_table(report.file("per_query.parquet"), filters=there).drop_columns("run") for seed, report in of.items()}
    return pd.concat([table.to_pandas().assign(seed=seed) for seed, table in tables.items()], ignore_index=True)


def _row(run: str, of: Mapping[str, Artifact]) -> dict[str, Any]:
    each = {seed: found for seed, report in of.items() if (found := metrics_of(report).get(run)) is not None}
    shared = [m for m in next(iter(each.values())) if all(m in found for found in each.values())]
    values = {m: [found[m] for found in each.values()] for m in shared}
    metrics: dict[str, dict[str, Any]] = {
        m: {"mean": float(np.mean(v)), "spread": float(np.std(v, ddof=1)) if len(v) > 1 else None, "values": v} for m, v in values.items()
    }
    return {"seeds": list(each), "metrics": metrics}


def _pairs(values: pd.DataFrame, first: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    """By metric, the values of each query and those of the first variant, both averaged over the seeds of which both have the metric."""
    both = values.merge(first, on=["seed", "query_id"], suffixes=("", " of the first"))
    pairs = {}
    for metric in (m for m in values.columns if m not in ("seed", "query_id") and f"{m} of the first" in both):
        there = both[["query_id", metric, f"{metric} of the first"]].dropna()
        if len(there):
            means = there.groupby("query_id").mean()
            pairs[metric] = (means[metric].to_numpy(), means[f"{metric} of the first"].to_numpy())
    return pairs


def text_table(summary: dict[str, Any], once: Collection[str]) -> str:
    """The summary for a terminal: for each run, one line per variant; one line for a run that was made `once` for all of them."""
    blocks = []
    for run, lines in _cells(summary, once).items():
        lines[0][0] = run
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        blocks.append("\n".join([rows[0], "-" * max(map(len, rows)), *rows[1:]]))
    return "\n\n".join([*blocks, f"{_LEGEND} {summary['tests']}"])


def markdown_table(summary: dict[str, Any], once: Collection[str]) -> str:
    """The same as a Markdown page."""
    parts = []
    for run, lines in _cells(summary, once).items():
        parts.append(f"## {run}\n\n{piped(lines)}")
    return "\n\n".join([*parts, f"{_LEGEND} {summary['tests']}"]) + "\n"


def _cells(summary: dict[str, Any], once: Collection[str]) -> dict[str, list[list[str]]]:
    """The words of each run's table, its head first."""
    tables = {}
    for run, rows in summary["runs"].items():
        metrics = list(dict.fromkeys(m for row in rows.values() for m in row["metrics"]))
        lines = [["", "seeds", *metrics]]
        for variant, row in rows.items():
            cells = [_cell(row["metrics"].get(m), row.get("significance", {}).get(m)) for m in metrics]
            lines.append(["(all)" if run in once else variant, str(len(row["seeds"])), *cells])
        tables[run] = lines[:2] if run in once else lines
    return tables


def _cell(measured: dict[str, Any] | None, comparison: dict[str, Any] | None) -> str:
    if measured is None:
        return "-"
    spread = "" if measured["spread"] is None else f" ± {measured['spread']:.4f}"
    return f"{measured['mean']:.4f}{spread} {significance_mark(comparison)}".rstrip()
