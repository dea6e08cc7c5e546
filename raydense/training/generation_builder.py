"""Builds the generations of hard negatives from the weights that workers hand over: while they are stopped, or in a thread while they train."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from raydense.errors import StorageError
from raydense.runtime.progress import muted, say
from raydense.training.generations import Generations
from raydense.training.inputs import refuse_replaced
from raydense.training.left_threads import leave
from raydense.training.loop_settings import LoopSettings


class MakeGeneration(Protocol):
    """Makes all of generation `number` from the weights that were handed over; `start` is the model folder that the training started from."""

    def __call__(self, settings: LoopSettings, start: str, generations: Generations, number: int) -> None: ...


class GenerationBuilder:
    """`with GenerationBuilder(...) as builder`: in mode async a thread builds each generation while the block runs."""

    def __init__(
        self, make: MakeGeneration | None, settings: LoopSettings, start: str, generations: Generations, inputs: dict[str, str]
    ) -> None:
        """`inputs`: the fingerprints of the training's inputs, by the keys of the settings."""
        self._make, self._settings, self._start, self._generations, self._inputs = make, settings, start, generations, inputs
        self._left = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="refresh", daemon=True)

    def __enter__(self) -> Self:
        self._generations.begin()
        if self._generations.last and self._generations.behind:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        if self._thread.is_alive():
            leave(self._generations.output, self._thread)
            with suppress(StorageError):
                self._generations.give_up("the training has ended" if error is None else "the training was stopped")
            if error is None:  # what it went on to write would stand in the finished model's folder
                say("train: ends when the phase of the refresh is done that is at work")
                self._thread.join()

    def make_open(self) -> float:
        """Make all generations whose weights were handed over, until the block has ended; returns the seconds."""
        begun = time.monotonic()
        for number in self._generations.open():
            if self._left.is_set():
                break
            assert self._make is not None, "a training with refresh is started by raydense.refresh.train"
            refuse_replaced(self._settings, self._inputs)
            self._make(self._settings, self._start, self._generations, number)
        return time.monotonic() - begun

    def check(self) -> None:
        """Raise an error of the thread; the workers that wait for the thread end."""
        if self._error is not None:
            raise self._error

    def failed_by(self, error: BaseException) -> bool:
        """Whether it is the thread's own error, and not one of the workers."""
        return error is self._error

    def _work(self) -> None:
        while not self._left.wait(self._generations.look_every_s):
            try:
                with muted():
                    self.make_open()
            except StorageError as error:  # the workers wait, or fail if they cannot reach the store either
                say(f"train: new negatives are tried again: {error}")
            except BaseException as error:  # raised again by check(), in the main thread
                if self._left.is_set():  # the training has ended, and nobody waits
                    return
                self._error = error
                with suppress(OSError):
                    self._generations.give_up(str(error))
                return
