"""The hits of a question as a table for a terminal: fitted to its width, with the question's words in bold where it shows them."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydense.serving.hits import HitList

_NARROWEST = 20  # columns of a snippet
_BOLD, _PLAIN = "\033[1m", "\033[0m"


def hit_table(hits: HitList, width: int | None = None, bold: bool | None = None) -> str:
    """A row a hit: rank, score, title (else id), and the part of the text that has the most words of the question.

    By default as wide as the terminal, and bold where standard output is one and NO_COLOR is not set. A score of a re-ranker has a *.
    """
    from raydense.serving.snippet import Marker, clipped, columns, printable

    if not len(hits):
        return "no passage found"
    width = width or shutil.get_terminal_size((100, 24)).columns
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR") if bold is None else bold
    ranks, scores = [str(hit.rank) for hit in hits], [f"{hit.score:.4f}{'*' if hit.reranked else ''}" for hit in hits]
    names = [printable(hit.title or hit.id) for hit in hits]
    left = max(4, *map(len, ranks)), max(5, *map(len, scores))
    room = max(_NARROWEST, width - sum(left) - 4)
    texts = any(hit.text for hit in hits)
    named = min(max(5, *map(columns, names)), room // 3) if texts else room
    marker = Marker(hits.question)
    lines = [f"{'rank':>{left[0]}}  {'score':>{left[1]}}  {'title' if any(hit.title for hit in hits) else 'id'}"]
    for hit, rank, score, name in zip(hits, ranks, scores, names, strict=True):
        name = clipped(name, named)
        parts = marker.snippet(hit.text, room - named - 2) if texts else []
        snippet = "".join(f"{_BOLD}{part}{_PLAIN}" if marked and bold else part for part, marked in parts)
        padded = name + " " * (named - columns(name)) if snippet else name
        lines.append(f"{rank:>{left[0]}}  {score:>{left[1]}}  {padded}  {snippet}".rstrip())
    return "\n".join(lines)
