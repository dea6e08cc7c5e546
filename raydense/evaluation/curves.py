"""The curves of a training run as inline SVG: loss, learning rate and metrics by step."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path
from typing import Any

from raydense.errors import InputError

HISTORY = "history.jsonl"
_INK, _LINE, _COLOUR = "#010203", "#040506", "#070809"
_MOST_POINTS = 1_000


def read_curves(model: Path) -> dict[str, list[tuple[int, float]]]:
    """The series of a model's history by name, each a list of (step, value), loss first; empty where it has no history."""
    path = model / HISTORY
    if not path.is_file():
        return {}
    series: dict[str, list[tuple[int, float]]] = {"loss": [], "lr": []}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line: dict[str, Any] = json.loads(text)
            step = int(line.pop("step"))
        except (ValueError, KeyError, AttributeError):
            raise InputError("not a line of a history", f"{path}:{number}", "train the model again, or leave it out") from None
        for name, value in line.items():
            if isinstance(value, (int, float)):
                series.setdefault(name, []).append((step, float(value)))
    return {name: points for name, points in series.items() if points}


def curve_svg(points: list[tuple[int, float]], name: str, salt: str) -> str:
    """One curve as an SVG element in the page's own colours and fonts; the same points give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    thin = points[:: max(1, len(points) // _MOST_POINTS)]
    steps, values = zip(*thin, strict=True)
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": salt, "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK}
    style |= {"ytick.color": _INK, "axes.edgecolor": _LINE, "grid.color": _LINE, "font.size": 9, "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(4.2, 2.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(steps, values, color=_COLOUR, linewidth=1.6, marker="o" if len(points) < 25 else None, markersize=3)
        axes.set_xlabel("step")
        axes.grid(True, linewidth=0.5)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5))
        axes.spines[["top", "right"]].set_visible(False)
        stream = io.StringIO()
        none = dict.fromkeys(["Date", "Creator", "Format", "Type"])
        figure.savefig(stream, format="svg", transparent=True, metadata=none)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor").replace(_LINE, "var(--line)").replace(_COLOUR, "var(--accent)")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    for mark in ('id="', 'href="#', "url(#"):
        svg = svg.replace(mark, f"{mark}{salt}-")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(name)} by step" ', 1)
