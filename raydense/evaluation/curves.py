"""The curves of a training run as inline SVG: loss, learning rate and metrics by step."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from raydense.errors import InputError
from raydense.svg import drawing

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
    thin = points[:: max(1, len(points) // _MOST_POINTS)]
    steps, values = zip(*thin, strict=True)
    style = dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], _INK)
    style |= {"axes.edgecolor": _LINE, "grid.color": _LINE}
    with drawing(salt, 4.2, 2.5, {**style, "savefig.transparent": True}) as (axes, drawn):
        axes.plot(steps, values, color=_COLOUR, linewidth=1.6, marker="o" if len(points) < 25 else None, markersize=3)
        axes.set_xlabel("step")
        axes.grid(True, linewidth=0.5)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5))
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor").replace(_LINE, "var(--line)").replace(_COLOUR, "var(--accent)")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    for mark in ('id="', 'href="#', "url(#"):
        svg = svg.replace(mark, f"{mark}{salt}-")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(name)} by step" ', 1)
