"""Sends the history of a training to experiment trackers of third parties, while it runs."""

from __future__ import annotations

import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raydense.errors import InputError, why
from raydense.runtime.progress import say
from raydense.training.history import HISTORY, Line
from raydense.training.loop_settings import LoopSettings

Send = Callable[[Line], None]
_AGAIN_S = 300.0  # a tracker's client may itself try for minutes, in which the training is not followed
_AT_ONCE_S = 1.0  # of those that waited
_MOST = 10_000  # lines


@contextmanager
def tracking(settings: LoopSettings) -> Iterator[Send]:
    """A function that sends a line of the history. The tracker's run ends with the block, as failed if the block raises.

    A fault of the tracker later than its start is logged once, and its lines are sent later: the history on disk is the record.
    InputError if the tracker is not installed, or cannot begin a run.
    """
    if settings.track == "none":
        yield lambda line: None
        return
    if find_spec(settings.track) is None:
        raise InputError(f"{settings.track} is not installed", "track", f"pip install {settings.track}, or give --track none")
    tracker: Any = import_module(settings.track)
    with ExitStack() as stack:
        try:
            log = (_mlflow if settings.track == "mlflow" else _wandb)(tracker, settings, stack)
        except Exception as error:
            fix = "check its address and account, or give --track none"
            raise InputError(f"{settings.track} could not begin a run ({why(error)})", "track", fix) from error
        patient = _Patient(settings.track, log)
        stack.callback(patient.close)
        yield patient.send


class _Patient:
    """Sends lines in their order. What the tracker does not take is tried again after some minutes, and left out if it takes the next one instead."""

    def __init__(self, name: str, log: Send) -> None:
        self._name, self._log = name, log
        self._waiting: deque[Line] = deque(maxlen=_MOST)  # a full one loses its oldest line
        self._given = self._taken = 0
        self._refused: Line | None = None  # the first that waits, if it was tried before
        self._after = 0.0

    def send(self, line: Line) -> None:
        self._waiting.append(line)
        self._given += 1
        if time.monotonic() >= self._after:
            self._try(_AT_ONCE_S)

    def close(self) -> None:
        """Try once more what waits, and say what is left out."""
        self._try(math.inf)
        if lacks := self._given - self._taken:
            say(f"train: {self._name} lacks {lacks:,} of {self._given:,} lines; {HISTORY} has all")

    def _try(self, seconds: float) -> None:
        """Send what waits, or as much of it as the tracker takes in some seconds."""
        until = time.monotonic() + seconds
        while self._waiting:
            first = self._waiting[0]
            if self._takes(first):
                self._waiting.popleft()
            elif self._refused is first and len(self._waiting) > 1 and self._takes(self._waiting[1]):
                self._waiting.popleft(), self._waiting.popleft()
            else:
                self._refused, self._after = first, time.monotonic() + _AGAIN_S
                return
            self._after = 0.0
            if time.monotonic() >= until:
                return

    def _takes(self, line: Line) -> bool:
        try:
            self._log(line)
        except Exception as error:
            if not self._after:
                say(f"train: {self._name} did not take step {line['step']:,} ({why(error)}); it is tried again, {HISTORY} has every step")
                self._after = time.monotonic()
            return False
        self._taken += 1
        return True


def _mlflow(tracker: Any, settings: LoopSettings, stack: ExitStack) -> Send:
    run = tracker.start_run(run_name=Path(settings.output).name)
    _end_with(stack, run, "mlflow")
    tracker.log_params(settings.shaping())
    return lambda line: tracker.log_metrics(_numbers(line), step=line["step"])


def _wandb(tracker: Any, settings: LoopSettings, stack: ExitStack) -> Send:
    # what `init` is given overrides the environment
    project, name = os.environ.get("WANDB_PROJECT") or "raydense", os.environ.get("WANDB_NAME") or Path(settings.output).name
    run = tracker.init(project=project, name=name, config=settings.shaping())
    _end_with(stack, run, "wandb")
    return lambda line: run.log(_numbers(line), step=line["step"])


def _end_with(stack: ExitStack, run: Any, name: str) -> None:
    """End the tracker's run with `stack`, as failed where that ends by an error; a fault of it is logged."""

    def end(*error: Any) -> None:
        try:
            run.__exit__(*error)
        except Exception as fault:
            say(f"train: {name} could not end its run ({why(fault)})")

    stack.push(end)


def _numbers(line: Line) -> dict[str, float]:
    """The values by names that both trackers take: the name of a source may have any character."""
    return {re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_")): value for name, value in line.items() if name != "step"}
