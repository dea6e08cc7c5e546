"""Counts of the blocks of a run, added up and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def added(blocks: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sum of each count over some blocks."""
    total: Counter[str] = Counter()
    for counts in blocks:
        total.update(counts)
    return dict(total)


def added_sources(blocks: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The positives and the negatives of each source over some blocks, in an order that does not depend on the blocks."""
    return {part: dict(sorted(added(block["sources"][part] for block in blocks).items())) for part in ("positives", "negatives")}


def listed(counts: dict[str, int]) -> str:
    """The counts that are not 0, in words."""
    return ", ".join(f"{count:,} {cause}" for cause, count in counts.items() if count) or "none"
