"""Tables of runs and metrics: plain text for a terminal, Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raydense.storage import Artifact


def measures_runs(report: Artifact) -> bool:
    """Whether a report has metrics of runs: that of an error analysis has none."""
    return not {"runs", "metrics"}.isdisjoint(report.summary["result"])


def comparison_table(report: Artifact, seconds: Mapping[str, float] | None = None) -> str:
    """The runs of a report artifact, a line each, with their metrics, and seconds if given."""
    runs = _runs_of(report)
    names = metrics_in(runs.values())
    lines = [["", *names, *(["seconds"] if seconds is not None else [])]]
    for run, measured in runs.items():
        time = [] if seconds is None else [f"{seconds[run]:,.1f}" if run in seconds else "-"]
        lines.append([run, *(figure(measured["metrics"].get(name)) for name in names), *time])
    halves = report.summary["result"].get("halves")
    return "\n\n".join([aligned(lines), *(_halves_table(halves, names) if halves else [])])


def _halves_table(halves: dict[str, Any], metrics: list[str]) -> list[str]:
    """How many queries have a relevant passage that training has seen, and the first metric of each run on both halves, if there are two."""
    seen, unseen = halves["seen"], halves["unseen"]
    if not (seen["queries"] and unseen["queries"]):
        return [halves_line(halves)]
    lines = [["", f"{seen['queries']:,} seen", f"{unseen['queries']:,} not seen"]]
    lines += [[run, *(figure(half["runs"][run].get(metrics[0])) for half in (seen, unseen))] for run in seen["runs"]]
    return [f"{halves_line(halves)} {metrics[0]} of these, and of the others:", aligned(lines)]


def halves_line(halves: dict[str, Any]) -> str:
    """How many of the queries with a relevant passage have one that is relevant to a training query."""
    seen, unseen = halves["seen"]["queries"], halves["unseen"]["queries"]
    some = f"{'All' if seen and not unseen else f'{seen:,}' if seen else 'None'} of the {seen + unseen:,} queries"
    without = ", not counting those that have no relevant passage" if halves["without_positive"] else ""
    verb = "has" if seen < 2 and unseen else "have"
    return f"{some} {verb} a relevant passage that is also relevant to a training query{without}."


def metrics_in(measured: Iterable[dict[str, Any]]) -> list[str]:
    """The metrics that any of some runs has, in their order."""
    return list(dict.fromkeys(name for of in measured for name in of["metrics"]))


def figure(value: float | None) -> str:
    """A metric as a cell, "-" where it was left out."""
    return "-" if value is None else f"{value:.4f}"


def metrics_of(report: Artifact) -> dict[str, dict[str, float]]:
    """The metrics of each run of a report artifact."""
    return {run: measured["metrics"] for run, measured in _runs_of(report).items()}


def _runs_of(report: Artifact) -> dict[str, Any]:
    """What was measured of each run of a report artifact."""
    result = report.summary["result"]
    return result["runs"] if "runs" in result else {report.manifest["made_from"]["names"][0]: result}


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, their head first, for a terminal: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]) for line in lines]
    return "\n".join([rows[0], "-" * len(rows[0]), *rows[1:]])


def piped(lines: Sequence[Sequence[str]]) -> str:
    """The same as a table of Markdown."""
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + " --- |" * len(lines[0]), *rows[1:]])
