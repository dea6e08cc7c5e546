"""How many pieces a part of a step is cut into, and of how many texts, by the settings alone: importing this imports no torch."""

from __future__ import annotations

import math

from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of


def texts_of(settings: LoopSettings) -> dict[str, int]:
    """How many texts of each kind a worker has in a part of a step, at most."""
    return method_of(settings).texts_of(settings)


def accumulates(settings: LoopSettings) -> bool:
    """Whether a part runs in pieces by plain accumulation: no loss couples its queries, and the texts of one query fit in a piece."""
    if not settings.micro_batch or settings.micro_batch == "auto":
        return False
    return not method_of(settings).couples(settings) and settings.micro_batch >= _each(settings)


def pieces_of(settings: LoopSettings) -> int:
    """The number of pieces in which a worker runs each part of a step: no piece has more than `micro_batch` texts of a kind."""
    if accumulates(settings):
        assert isinstance(settings.micro_batch, int)
        return math.ceil(method_of(settings).queries_of(settings) / (settings.micro_batch // _each(settings)))
    assert isinstance(settings.micro_batch, int), "micro_batch auto is found first"
    return math.ceil(max(texts_of(settings).values()) / settings.micro_batch) if settings.micro_batch else 1


def _each(settings: LoopSettings) -> int:
    """The most texts of a kind that one query has."""
    return max(texts_of(settings).values()) // method_of(settings).queries_of(settings)


def largest_piece(settings: LoopSettings, pieces: int) -> dict[str, int]:
    """How many texts of each kind the largest piece has."""
    texts, queries = texts_of(settings), method_of(settings).queries_of(settings)
    if accumulates(settings):
        return {name: -(-queries // pieces) * (count // queries) for name, count in texts.items()}
    return {name: -(-count // pieces) for name, count in texts.items()}
