"""What worker 0 shows the driver next to the history, for the person who waits: what it trains on what, and the step it is at."""

from __future__ import annotations

import time
from contextlib import suppress

from raydense.errors import StorageError
from raydense.storage import Place
from raydense.training.method import Batch

_START, _STEP = "start.txt", "step.txt"
_EVERY_S = 2.0


class Status:
    """The writer, on worker 0: the history is written every `log_every` steps, which may take minutes, and this by time."""

    def __init__(self, shared: Place) -> None:
        self._shared, self._next = shared, 0.0

    def start(self, line: str) -> None:
        """What is trained, in a line."""
        with suppress(StorageError):
            (self._shared / _START).write_text(line)

    def at(self, step: int) -> None:
        """So many steps are done."""
        if time.monotonic() >= self._next:
            with suppress(StorageError):
                (self._shared / _STEP).write_text(str(step))
            self._next = time.monotonic() + max(_EVERY_S, self._shared.look_every_s)


def forget(shared: Place) -> None:
    """Remove what earlier workers have left."""
    for name in (_START, _STEP):
        (shared / name).delete()


def start_line(shared: Place) -> str | None:
    """The line of `Status.start`; None where worker 0 has not begun."""
    return (shared / _START).read_text()


def steps_done(shared: Place) -> int | None:
    """The steps that worker 0 has done, a few seconds ago; None where it has not done one."""
    text = (shared / _STEP).read_text()
    return int(text) if text else None


def tokens_of(parts: list[Batch]) -> int:
    """The tokens that the texts of a step's parts have, padding left out."""
    return sum(int(texts["attention_mask"].sum()) for part in parts for texts in part.values() if isinstance(texts, dict))
