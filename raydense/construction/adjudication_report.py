"""The report of `adjudicate`: what was judged, what was found, and the metrics of runs before and after, as Markdown with a chart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raydense.data.report_page import table, write_page
from raydense.svg import drawing

LIGHT, DARK = "#9ecae1", "#2171b5"


def write_report(path: Path, summary: dict[str, Any]) -> None:
    """Write the page, of the summary of the artifact."""
    write_page(path, _counts(summary), _packages(summary["packages"], summary["not_judged"]), _runs(summary["runs"]))


def _counts(summary: dict[str, Any]) -> Iterator[str]:
    positives, sources = summary["positives_per_query"], summary["by_source"]
    yield "# False negatives\n"
    rows = [
        ("queries", f"{summary['queries']:,}"),
        (f"queries judged by {judges(summary)}", f"{summary['judged_queries']:,}"),
        ("pairs to judge", f"{summary['asked']:,}"),
        ("pairs judged by people", f"{summary['judged']:,}"),
        ("disputed, which change nothing", f"{summary['disputed']:,}"),
        ("false negatives", f"{summary['false_negatives']:,}"),
        ("of these by people", f"{sources['human']:,}"),
        (f"of these by the re-rankers{_above(summary)}", f"{sources['model']:,}"),
        ("of these by the text of a known positive", f"{sources['gold']:,}"),
        (
            "of the queries judged, those with at least one",
            f"{summary['queries_with_false_negatives']:,} ({summary['share_of_queries']:.2%})",
        ),
        ("positives relabelled as not relevant", f"{summary['relabelled']:,}"),
        ("queries without a positive", f"{summary['without_positive']:,}"),
        ("positives per query judged, before", f"{positives['before']:.2f}"),
        ("positives per query judged, after", f"{positives['after']:.2f}"),
    ]
    yield from table(("", "count"), rows)
    yield "\nDuReader-retrieval found some for 71.53% of its queries; its positives per query rose from 2.43 to 4.91 (Qiu et al. 2022, section 2.3)."


def judges(summary: dict[str, Any]) -> str:
    """Who judged, in words: people, the re-rankers, or both."""
    who = [name for name, some in (("people", summary["judged"]), ("re-rankers", summary["threshold"] is not None)) if some]
    return " or ".join(who)


def _above(summary: dict[str, Any]) -> str:
    return "" if summary["threshold"] is None else f" (mean probability above {summary['threshold']:g})"


def _packages(packages: dict[str, dict[str, Any]], not_judged: list[str]) -> Iterator[str]:
    if packages:
        yield "\n## Packages\n"
        rows = (
            (
                name,
                f"{of['pairs']:,}",
                f"{of['annotators']}",
                f"{of['reviewers']}",
                f"{of['reviewed']:,}",
                "not reviewed" if of["agreement"] is None else f"{of['agreement']:.1%}",
            )
            for name, of in packages.items()
        )
        yield from table(("package", "pairs", "annotators", "reviewers", "reviewed", "agreement"), rows)
        if not_judged:
            yield f"\n{len(not_judged):,} packages are not judged yet, the first is {not_judged[0]}."


def _runs(runs: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    if runs:
        yield "\n## Runs before and after\n"
        rows = (
            (name, metric, f"{value:.4f}", f"{of['after'][metric]:.4f}", f"{of['after'][metric] - value:+.4f}")
            for name, of in runs.items()
            for metric, value in of["before"].items()
        )
        yield from table(("run", "metric", "before", "after", "difference"), rows)
        yield "\n![Each metric of each run before and after](before-and-after.svg)"


def before_and_after_svg(runs: dict[str, dict[str, dict[str, float]]]) -> str:
    """Bars of each metric of each run, light before and dark after, as in figure 2 of Qiu et al. 2022; the same runs give the same bytes."""
    rows = [(f"{name}, {metric}", value, of["after"][metric]) for name, of in runs.items() for metric, value in of["before"].items()]
    places = range(len(rows))
    with drawing("before and after", 5.6, 0.9 + 0.36 * len(rows)) as (axes, drawn):
        axes.barh([at - 0.18 for at in places], [before for _, before, _ in rows], height=0.34, color=LIGHT, label="before")
        axes.barh([at + 0.18 for at in places], [after for _, _, after in rows], height=0.34, color=DARK, label="after")
        axes.set_yticks(list(places), [name for name, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.grid(True, axis="x", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="lower right")
    return drawn.getvalue()
