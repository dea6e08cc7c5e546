"""report.html of the stage `compare`: a table of the indexes, and a chart of recall against queries a second."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from raydense.svg import drawing

_STYLE = "body{font:15px sans-serif;margin:2em auto;max-width:60em}td,th{padding:.2em .8em;text-align:right}td:first-child{text-align:left}"


def write_page(path: Path, rows: list[dict[str, Any]], k: int, about: dict[str, int]) -> None:
    """Write the page; `rows` hold what was measured of each factory, in the order of the table, and `about` the sample."""
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in names) + "</tr>\n" for row in rows)
    sample = f"{about['sample']:,} of {about['vectors']:,} vectors of {about['dimension']} dimensions"
    notes = (
        f"Measured on a sample of {sample}, with {about['threads']} threads; other passages of the corpus are the queries, all in one call. "
        "GiB of all: the index of all vectors, in proportion; a larger corpus wants more inverted lists than its sample."
    )
    page = f"<table>\n<tr>{head}</tr>\n{body}</table>\n{chart_svg(rows, k)}\n<p>{notes}</p>"
    title = "Indexes compared"
    whole = f"<!doctype html>\n<meta charset='utf-8'>\n<title>{title}</title>\n<style>{_STYLE}</style>\n<h1>{title}</h1>\n{page}\n"
    path.write_text(whole, encoding="utf-8")


def _cell(value: object) -> str:
    return html.escape(value) if isinstance(value, str) else f"{value:,}"


def chart_svg(rows: list[dict[str, Any]], k: int) -> str:
    """Recall along the axis, queries a second upwards, a point for each factory; the same rows give the same bytes."""
    with drawing("compare", 7.2, 4.2, {"text.parse_math": True}) as (axes, drawn):  # powers of ten along a logarithmic axis
        for row in rows:
            at = row[f"recall@{k}"], row["queries/s"]
            axes.plot(*at, marker="o", markersize=4, color="tab:blue")
            axes.annotate(f"{row['factory']} ({row['MiB']:,.0f} MiB)", at, xytext=(5, 3), textcoords="offset points")
        axes.set_yscale("log")
        axes.set_xlabel(f"recall@{k}")
        axes.set_ylabel("queries/s")
        axes.margins(x=0.2)
        axes.grid(True, linewidth=0.5)
    svg = drawn.getvalue()
    return svg[svg.index("<svg") :]
