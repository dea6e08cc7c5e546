"""Counts of the blocks of a run, added up and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from raydense.runtime.progress import say


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


def say_answers(stage: str, summary: dict[str, Any]) -> None:
    """Say in how many passages answers were looked for, and how many answers are expressions that are invalid or took too long."""
    if answers := summary.get("answers"):
        say(f"{stage}: looked for answers in {answers['looked at']:,} passages, until each query had its negatives")
        if answers.get("invalid"):
            say(f"{stage}: {answers['invalid']:,} answers are invalid as expressions, and had no effect")
        if answers.get("given up"):
            say(f"{stage}: {answers['given up']:,} answers took too long as expressions: passages that may hold them are no negatives")


def say_shortage(stage: str, summary: dict[str, Any], enough: int, kind: str) -> None:
    """Say how many queries have fewer than `enough` negatives, which are of a `kind`, and how many of those that are kept have none."""
    if summary["short"]:
        say(f"{stage}: {summary['short']:,} queries have fewer than {enough} {kind}; nothing was filled in")
    if none := summary["negatives"][0]:
        refused = "no negative, which a training with negatives refuses"
        say(f"{stage}: {none:,} of them have {refused}: --min-negatives 1 --shortage drop leaves them out")
