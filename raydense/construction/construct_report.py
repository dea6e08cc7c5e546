"""The report that `construct` writes: what each step kept and dropped, and tables 2 and 3 of the paper for this data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raydense.data.report_page import table, write_page

_PAPER = {  # DuReader-retrieval, table 3
    "train": ("86,395", "222,395", "2.57", "9.51", "358.58"),
    "dev": ("2,000", "9,863", "4.93", "9.29", "398.59"),
    "test": ("4,000", "19,601", "4.90", "9.23", "401.61"),
}


def write_report(path: Path, summary: dict[str, Any]) -> None:
    """Write the page, as Markdown."""
    write_page(path, _rules(summary), _steps(summary), _set(summary), _splits(summary))


def _rules(summary: dict[str, Any]) -> Iterator[str]:
    yield "# A retrieval data set from questions, documents and answers\n"
    yield (
        f"A paragraph is positive if the F1 of one of its spans and one of the answers is at least {summary['f1']:g}, counted in"
        f" {summary['unit']}; paragraphs are joined to passages of more than {summary['length']} {summary['unit']}; a passage is positive"
        " if one of its paragraphs is.\n"
    )


def _steps(summary: dict[str, Any]) -> Iterator[str]:
    yield "## Steps\n"
    yield from table(("", "count"), ((name, f"{count:,}") for name, count in summary["steps"].items()))


def _set(summary: dict[str, Any]) -> Iterator[str]:
    yield "\n## The data set\n\nAs table 2 of the paper, and the lengths that its section 2.2.2 has.\n"
    length, unit = summary["passage_length"], summary["unit"]
    row = (
        f"{summary['steps']['queries']:,}",
        f"{summary['steps']['passages in the corpus']:,}",
        str(length["median"]),
        str(length["mean"]),
    )
    yield from table(("queries", "passages", f"median length, {unit}", f"mean length, {unit}"), [row])
    yield "\nDuReader-retrieval: 97K queries, 8.9M passages (8,096,668 in table 3), median length 304, mean 272 characters.\n"


def _splits(summary: dict[str, Any]) -> Iterator[str]:
    yield "## Splits\n\nAs table 3 of the paper, whose numbers, where lengths are counted in characters, follow those of the split of the same name. Its dev and test were judged by people afterwards.\n"
    splits, unit = summary["splits"], summary["unit"]
    rows = ("queries", "positive pairs", "positive passages", "passages a query", f"{unit} a query", f"{unit} a positive passage")
    named = [name for name in splits if name in _PAPER and unit == "characters"]  # the paper's lengths are in these
    of_paper = {name: dict(zip((*rows[:2], *rows[3:]), _PAPER[name], strict=True)) for name in named}
    head = ("", *splits, *(f"{name}, paper" for name in named))
    yield from table(
        head, ((row, *(f"{splits[name][row]:,}" for name in splits), *(of_paper[name].get(row, "") for name in named)) for row in rows)
    )
