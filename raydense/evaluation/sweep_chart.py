"""A metric of each run along a number that was swept, as metric against list length: mean and spread over the seeds, as an SVG file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any


def chart_svg(runs: Mapping[str, Mapping[str, Any]], along: str, values: Mapping[str, float]) -> str:
    """The first metric of the "runs" of `trials.summarise`, one line per run, along `values`: each variant's place on the axis `along`.

    Bars are the sample standard deviation over the seeds. The same runs give the same bytes; no metric gives "".
    """
    import matplotlib
    from matplotlib.figure import Figure

    metric = next((name for rows in runs.values() for row in rows.values() for name in row["metrics"]), None)
    if metric is None:
        return ""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": along, "font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for run, rows in runs.items():
            points = sorted((values[variant], row["metrics"][metric]) for variant, row in rows.items() if metric in row["metrics"])
            bars = [found["spread"] or 0.0 for _, found in points]
            axes.errorbar(
                [at for at, _ in points], [found["mean"] for _, found in points], bars, label=run, marker="o", markersize=3, capsize=3
            )
        axes.set_xlabel(along)
        axes.set_ylabel(metric)
        axes.set_xticks(sorted(set(values.values())))
        axes.grid(True, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(["Date", "Creator", "Format", "Type"]))
    return stream.getvalue()
