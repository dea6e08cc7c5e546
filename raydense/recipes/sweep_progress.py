"""What a sweep prints while stages of its trials are at work: the newest line of each trial's log, every half a minute."""

from __future__ import annotations

import os
import threading
from typing import Self

from raydense.recipes.sweep import Trial
from raydense.runtime.progress import say

_EVERY_S = 30.0
_LINE_BYTES = 4_096  # the end of a log in which its last line is


class SweepProgress:
    """`with SweepProgress(running):` prints what the trials in `running`, by name, say of the stage that they are at."""

    def __init__(self, running: dict[str, Trial]) -> None:
        self._running = running
        self._said: dict[str, str] = {}
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="sweep progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.wait(_EVERY_S):
            for line in self.lines():
                say(line)

    def lines(self) -> list[str]:
        """The last line of each running trial's log, but those that were there at the call before, and those on which stages begin and end."""
        said = {name: _last_line(trial) for name, trial in list(self._running.items())}
        new = [f"{name}: {line}" for name, line in said.items() if line and line[0] != "[" and line != self._said.get(name)]
        self._said = said
        return new


def _last_line(trial: Trial) -> str:
    """The last line that a trial's log has whole; "" where there is none."""
    try:
        with open((trial.recipe.output / "log").growing(), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LINE_BYTES))
            whole = log.read().decode(errors="replace").rpartition("\n")[0]
    except OSError:  # it is not there yet, or its disk is away: only a line is lost
        return ""
    return whole.rpartition("\n")[2].strip()
