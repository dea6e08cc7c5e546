"""SIGTERM, Ctrl-C and a closed terminal while a sweep runs: the trainings of its trials save after the step that they are in.

So the next run repeats no step.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from raydense.errors import InputError, StorageError
from raydense.recipes.recipe import open_stages
from raydense.recipes.sweep import Trial
from raydense.runtime.progress import say
from raydense.runtime.signals import HEARD, handle, restore
from raydense.storage import WORK, Place
from raydense.training.ending import SAME_S, WAITS_S
from raydense.training.loop_settings import LoopSettings
from raydense.training.notice import ask_to_end, is_asked
from raydense.training.registered import newest_state
from raydense.training.status import start_line


@contextmanager
def saving(running: dict[str, Trial]) -> Iterator[None]:
    """In the block, the first signal waits until the trainings of the trials that are `running` then are saved, for at most five minutes.

    It then does what it did before the block; a second one does so at once. In a thread other than the main one it leaves signals alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            _save(running)
        elif time.monotonic() - first < SAME_S:
            return
        restore(before)
        before[signal.Signals(number)](number, frame)

    before = handle([number for number in HEARD if callable(signal.getsignal(number))], hear)
    try:
        yield
    finally:
        restore(before)


def _save(running: dict[str, Trial]) -> None:
    with suppress(StorageError, InputError):  # in an outage the newest checkpoints have to do
        asked = {work: _step(work) for work in _trainings(list(running.values()))}
        for work in asked:
            ask_to_end(Place.of(work))
        if asked:
            what = "1 training saves" if len(asked) == 1 else f"{len(asked)} trainings save"
            say(f"sweep: {what} after the step under way, then it ends; a second signal ends it at once")
        end = time.monotonic() + WAITS_S
        while asked and time.monotonic() < end:
            time.sleep(max(Place.of(work).look_every_s for work in asked))
            asked = {work: step for work, step in asked.items() if is_asked(Place.of(work)) and _step(work) == step}


def _trainings(trials: list[Trial]) -> set[str]:
    """The work of the trainings under way that are at a step."""
    stages = []
    for trial in trials:
        with suppress(InputError):  # whose folder was changed meanwhile: the others save all the same
            stages += open_stages(trial.recipe)[:1]
    works = {str(Place.of(stage.settings.output) / WORK) for stage in stages if isinstance(stage.settings, LoopSettings)}
    return {work for work in works if start_line(Place.of(work)) is not None}


def _step(work: str) -> int:
    return state.step if (state := newest_state(Place.of(work))) else 0
