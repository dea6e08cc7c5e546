"""What worker 0 reports to the driver next to the history: a line about the training, and the step that it is at."""

from __future__ import annotations

import time
from contextlib import suppress

from raydense.errors import StorageError
from raydense.storage import Place
from raydense.training.outage import Latest

_START, _STEP = "start.txt", "step.txt"
_EVERY_S = 2.0


class Status:
    """The writer, on worker 0. The history is written every `log_every` steps, which may take minutes; this every few seconds."""

    def __init__(self, shared: Place) -> None:
        self._shared, self._next, self._writing = shared, 0.0, Latest("status")

    def start(self, line: str) -> None:
        """Write the line about the training."""
        with suppress(StorageError):
            (self._shared / _START).write_text(line)

    def at(self, step: int) -> None:
        """Report that `step` steps are done."""
        if time.monotonic() >= self._next:
            self._writing.do(lambda: (self._shared / _STEP).write_text(str(step)))
            self._next = time.monotonic() + max(_EVERY_S, self._shared.look_every_s)

    def close(self) -> None:
        """Wait for what is being written."""
        self._writing.close()


def forget(shared: Place) -> None:
    """Remove what earlier workers reported."""
    for name in (_START, _STEP):
        (shared / name).delete()


def start_line(shared: Place) -> str | None:
    """The line of `Status.start`; None if worker 0 has not begun."""
    return (shared / _START).read_text()


def steps_done(shared: Place) -> int | None:
    """The steps that worker 0 had done a few seconds ago; None if it has done none."""
    text = (shared / _STEP).read_text()
    return int(text) if text else None
