"""The table of runs and metrics as plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from raydense.data.artifact import Artifact


def comparison_table(report: Artifact, seconds: Mapping[str, float] | None = None, metrics: list[str] | None = None) -> str:
    """The runs of a report artifact, a line each, with their metrics (all, or those named, in that order) and seconds if given."""
    result = report.summary["result"]
    runs = result.get("runs", {"run": result})
    names = metrics or list(next(iter(runs.values()))["metrics"])
    lines = [["", *names, *(["seconds"] if seconds is not None else [])]]
    for run, measured in runs.items():
        time = [] if seconds is None else [f"{seconds[run]:,.1f}" if run in seconds else "-"]
        lines.append([run, *(f"{measured['metrics'][name]:.4f}" for name in names), *time])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]) for line in lines]
    return "\n".join([rows[0], "-" * len(rows[0]), *rows[1:]])
