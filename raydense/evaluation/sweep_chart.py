"""The first metric of a sweep as an SVG file, mean and spread over the seeds: along the number that was swept, else a bar for each run and variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydense.svg import drawing

Runs = Mapping[str, Mapping[str, Any]]
_STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Axis:
    """The number that variants differ in: its key, its value in each variant, and what else a variant is, the name of its line ("": nothing else)."""

    key: str
    values: Mapping[str, float]
    lines: Mapping[str, str]


def chart_svg(runs: Runs, axis: Axis) -> str:
    """The first metric of the "runs" of `trials.summarise` along an axis: a line for each run, or for each of the axis's lines of each run.

    Bars are the sample standard deviation over the seeds. The same runs give the same bytes; no metric gives "".
    """
    metric = _first_metric(runs)
    if metric is None:
        return ""
    lines = list(dict.fromkeys(axis.lines.values()))
    with drawing(axis.key, 5.6 if len(lines) == 1 else 7.4, 3.4) as (axes, drawn):
        for number, (run, rows) in enumerate(runs.items()):
            for place, line in enumerate(lines):
                of_line = {variant: row["metrics"] for variant, row in rows.items() if axis.lines[variant] == line}
                points = sorted((axis.values[variant], found[metric]) for variant, found in of_line.items() if metric in found)
                several = {"color": f"C{place}", "linestyle": _STYLES[number % len(_STYLES)]} if len(lines) > 1 else {}
                axes.errorbar(
                    [at for at, _ in points], [found["mean"] for _, found in points], [found["spread"] or 0.0 for _, found in points],
                    label=", ".join(word for word in (run, line) if word), marker="o", markersize=3, capsize=3, **several,
                )  # fmt: skip
        axes.set_xlabel(axis.key)
        axes.set_ylabel(metric)
        axes.set_xticks(sorted(set(axis.values.values())))
        axes.grid(True, linewidth=0.5)
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(lines) > 1 else {}
        axes.legend(frameon=False, **beside)
    return drawn.getvalue()


def bars_svg(runs: Runs) -> str:
    """The first metric of the "runs" of `trials.summarise`: a bar for each run, or for each variant of each run where there are several.

    Lines are the sample standard deviation over the seeds. The same runs give the same bytes; no metric gives "".
    """
    metric = _first_metric(runs)
    if metric is None:
        return ""
    several = len({variant for rows in runs.values() for variant in rows}) > 1
    found = {
        f"{run}, {variant}" if several and len(rows) > 1 else run: row["metrics"][metric]
        for run, rows in runs.items()
        for variant, row in rows.items()
        if metric in row["metrics"]
    }
    with drawing("bars", 5.6, 0.8 + 0.24 * len(found)) as (axes, drawn):
        means, spreads = [one["mean"] for one in found.values()], [one["spread"] or 0.0 for one in found.values()]
        axes.barh(list(found), means, xerr=spreads, height=0.6, capsize=3)
        axes.invert_yaxis()
        axes.set_xlabel(metric)
        axes.set_xlim(max(0.0, min(means) - 0.1), max(m + s for m, s in zip(means, spreads, strict=True)) + 0.02)
        axes.grid(True, axis="x", linewidth=0.5)
        axes.set_axisbelow(True)
    return drawn.getvalue()


def _first_metric(runs: Runs) -> str | None:
    return next((name for rows in runs.values() for row in rows.values() for name in row["metrics"]), None)
