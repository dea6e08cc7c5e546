"""The parts of the reports that stages write next to their outputs: tables, bars and cut texts, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_SHOWN = 240
_BAR = 40


def write_page(path: Path, *parts: Iterable[str]) -> None:
    """Write the lines of all parts, one part after another."""
    path.write_text("".join(f"{line}\n" for part in parts for line in part), encoding="utf-8")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def bars(counts: Sequence[int]) -> list[str]:
    """A bar for each count, the longest for the largest."""
    most = max(counts)
    return ["█" * -(-_BAR * count // most) if most else "" for count in counts]


def shown(text: str) -> str:
    """A text on one line, cut where it is long; what would be HTML in Markdown is escaped."""
    words = " ".join(text.split())
    cut = words if len(words) <= _SHOWN else f"{words[: _SHOWN - 1]}…"
    return cut.replace("&", "&amp;").replace("<", "&lt;")
