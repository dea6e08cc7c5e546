"""What worker 0 reports to the driver next to the history: a line about the training, and the step that it is at."""

from __future__ import annotations

import time
from contextlib import suppress

from raydense.storage import Place
from raydense.training.outage import Latest
from raydense.training.registered import State

_MICRO_BATCH, _START, _STEP, _DEV = "micro_batch.txt", "start.txt", "step.txt", "dev.txt"
_EVERY_S = 2.0


class Status:
    """The writer, on worker 0. The history is written every `log_every` steps, which may take minutes; this every few seconds."""

    def __init__(self, shared: Place) -> None:
        self._shared, self._next, self._writing = shared, 0.0, Latest("status")

    def micro_batch(self, line: str) -> None:
        """Write which micro-batch was found."""
        self._write(_MICRO_BATCH, line)

    def start(self, line: str) -> None:
        """Write the line about the training."""
        self._write(_START, line)

    def dev(self, line: str) -> None:
        """Write what the dev metric does: that it is measured, or what was found."""
        self._write(_DEV, line)

    def _write(self, name: str, line: str) -> None:
        with suppress(OSError):
            (self._shared / name).write_text(line)

    def at(self, step: int) -> None:
        """Report that `step` steps are done."""
        if time.monotonic() >= self._next:
            self._writing.do(lambda: (self._shared / _STEP).write_text(str(step)))
            self._next = time.monotonic() + max(_EVERY_S, self._shared.look_every_s)

    def close(self) -> None:
        """Wait for what is being written."""
        self._writing.close()


def when(step: int) -> str:
    """At which step, in words."""
    return f"after step {step:,}" if step else "before the first step"


def dev_measured(values: dict[str, float], decides: str, state: State, misses: int, patience: int) -> str:
    """The line of a dev measurement: its values, and how the one that `decides` stands among those before, of which `misses` in a row were no better.

    Where no best one is kept, the values alone.
    """
    found = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
    if state.best is None:
        return f"dev {when(state.step)}: {found}"
    if state.best_step == state.step:
        return f"dev {when(state.step)}: {found}{f', the best {decides} so far' if state.step else ''}"
    ends = f"; {misses} of {patience} in a row without a better one" if patience else ""
    return f"dev {when(state.step)}: {found}; the best {decides} is {state.best:.4f}, {when(state.best_step)}{ends}"


def forget(shared: Place) -> None:
    """Remove what earlier workers reported."""
    for name in (_MICRO_BATCH, _START, _STEP, _DEV):
        (shared / name).delete()


def micro_batch_line(shared: Place) -> str | None:
    """The line of `Status.micro_batch`."""
    return (shared / _MICRO_BATCH).read_text()


def start_line(shared: Place) -> str | None:
    """The line of `Status.start`; None if worker 0 has not begun."""
    return (shared / _START).read_text()


def dev_line(shared: Place) -> str | None:
    """The newest line of `Status.dev`."""
    return (shared / _DEV).read_text()


def steps_done(shared: Place) -> int | None:
    """The steps that worker 0 had done a few seconds ago; None if it has done none."""
    text = (shared / _STEP).read_text()
    return int(text) if text else None
