"""Charts as SVG, drawn by matplotlib: the same drawing has the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def drawing(salt: str, width: float, height: float, style: Mapping[str, Any] | None = None) -> Iterator[tuple[Any, io.StringIO]]:
    """Axes to draw on, and where the SVG is when the block has ended; sizes in inches, and a style of matplotlib's settings."""
    import matplotlib
    from matplotlib.figure import Figure

    stream = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    settings |= {"svg.hashsalt": salt, "text.parse_math": False}  # names of stages in labels begin with a dollar
    with matplotlib.rc_context(settings | dict(style or {})):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        yield axes, stream
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(["Date", "Creator", "Format", "Type"]))
