"""SIGTERM, Ctrl-C and a closed terminal while a training runs: its workers save after the step that they are in.

So the next run repeats no step.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from raydense.runtime.progress import say
from raydense.runtime.signals import HEARD, handle, restore
from raydense.storage import Place
from raydense.training.notice import ask_to_end
from raydense.training.registered import newest_state
from raydense.training.status import start_line

WAITS_S = 300.0
SAME_S = 1.0  # `timeout`, and schedulers, send a signal to a process and then to its group: it is one


class Ending:
    """`with Ending(shared, steps) as ending:` handles these signals in the driver; in a thread other than the main one it leaves them alone.

    SIGTERM ends with exit code 143, a closed terminal (SIGHUP, unless `nohup` ignores it) with 129, Ctrl-C with a KeyboardInterrupt.
    A second signal ends at once, and so does the first one while no worker is at a step.
    """

    def __init__(self, shared: Place, steps: int) -> None:
        self._shared, self._steps = shared, steps
        self._given: signal.Signals | None = None
        self._following, self._first, self._asked = False, 0.0, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = handle(HEARD, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        restore(self._before)
        if kind is None:
            self.check(self._steps)

    @contextmanager
    def following(self) -> Iterator[None]:
        """In the block workers run, and `look` is called again and again."""
        self._following = True
        try:
            yield
        finally:
            self._following = False

    def look(self) -> None:
        """After a signal: ask the workers to save and end. Ends here if none is at a step yet, or they take longer than five minutes."""
        if self._given is None:
            return
        if not self._asked:
            with suppress(OSError):  # in an outage it is asked again at the next look
                if start_line(self._shared) is None:
                    self._end()
                ask_to_end(self._shared)
                self._asked = True
                say("train: saves after this step, and ends; a second signal ends it at once")
        if time.monotonic() - self._first > WAITS_S:
            self._end()

    def check(self, step: int | None = None) -> None:
        """End here if there was a signal, and its workers have ended, after `step` if that is known."""
        if self._given is not None:
            self._end(step)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._given is None:
            self._given, self._first = signal.Signals(number), now
            if not self._following:
                self._end()
        elif now - self._first > SAME_S:
            self._end()

    def _end(self, step: int | None = None) -> NoReturn:
        assert self._given is not None
        if step is None:
            step = self._newest()
        if step is None:
            on = "continues from the newest checkpoint"
        elif step < self._steps:
            on = f"continues from step {step:,} of {self._steps:,}"
        else:
            on = "writes the model: all steps are done"
        say(f"train: ended by {self._given.name}; the same command {on}")
        raise KeyboardInterrupt if self._given == signal.SIGINT else SystemExit(128 + self._given)

    def _newest(self) -> int | None:
        """The step of the newest checkpoint, 0 without one; None where the store cannot be reached."""
        with suppress(OSError):
            return state.step if (state := newest_state(self._shared)) else 0
        return None
