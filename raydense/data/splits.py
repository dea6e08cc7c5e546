"""The splits of judgements, and which of them are drawn from which; light, since settings and recipes read it too."""

from __future__ import annotations

from typing import Literal

FillBy = Literal["questions", "passages"]
SHARES = {"train": 7, "dev": 1, "test": 2}


def divided(there: list[str]) -> list[str]:
    """The split whose queries are divided, and those that are drawn from it; nothing if none of train, dev and test is there."""
    giver = next((split for split in SHARES if split in there), None)
    return [giver, *(split for split in SHARES if split not in there)] if giver else []
