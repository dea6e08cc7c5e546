"""What this process holds for a stage: the outputs that it writes, which another process may continue when the stage has ended; and files that it reads."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from raydense.errors import InputError, LostOutput, StorageError
from raydense.storage.files import open_lock, take
from raydense.storage.place import Hold, Place

P = ParamSpec("P")
T = TypeVar("T")


class Writer(Protocol):
    """A draft, which a hold belongs to."""

    place: Place

    def discard_untouched(self) -> None:
        """Remove the output if nothing was written to it."""

    def forget(self) -> None:
        """Remove what this machine keeps of it elsewhere."""


@dataclass(frozen=True)
class _Held:
    hold: Hold
    writer: Writer
    thread: threading.Thread
    stage: object  # the one that it was acquired in, None where a thread of it does not say
    left: list[threading.Thread] = field(default_factory=list)  # what may write to it after the end of its stage

    def is_written(self) -> bool:
        return any(one.is_alive() for one in self.left)


_HELD: dict[str, _Held] = {}  # by `Place.located`; the end of the process releases them, too
_READ: dict[tuple[object, Path], int] = {}  # open lock files, by the stage that reads what they stand for
_READING = threading.Lock()
_OPENING = threading.Lock()
_STAGE: ContextVar[object] = ContextVar("stage", default=None)


def acquire(writer: Writer, work: Place) -> None:
    """Acquire the right to write the output whose work folder is `work`. LostOutput if another process or thread has it.

    A thread runs one stage at a time: what it still holds of the same output is of a stage that failed.
    """
    with _OPENING:
        there = _HELD.get(writer.place.located)
        other = there is not None and there.thread is not threading.current_thread() and there.thread.is_alive()
        if other or (there is not None and there.is_written()):
            fix = "wait for it, or give another --output"
            raise LostOutput("another thread of this process is writing here", writer.place, fix)
        release(writer.place)
        _HELD[writer.place.located] = _Held(work.hold(), writer, threading.current_thread(), _STAGE.get())


def hold_of(place: Place) -> Hold | None:
    """The hold that this process has of an output."""
    held = _HELD.get(place.located)
    return held.hold if held else None


def release(place: Place) -> None:
    """Release an output, if this process holds it."""
    held = _HELD.pop(place.located, None)
    if held is not None:
        held.hold.release()


def end(place: Place) -> None:
    """Delete the work folder of an output, and release it."""
    held = _HELD.get(place.located)
    if held is not None:
        try:
            held.hold.end()
        finally:
            _HELD.pop(place.located, None)


def stays_held(place: Place, thread: threading.Thread) -> None:
    """Let an output that this process holds stay held after the end of its stage, until `thread` has ended, which writes to it."""
    held = _HELD.get(place.located)
    if held is not None:
        held.left.append(thread)


def forget_within(place: Place) -> None:
    """Release the outputs in one whose files were deleted, and remove what this machine keeps of them elsewhere."""
    for located in [one for one in list(_HELD) if one.startswith(f"{place.located}/")]:
        inner = _HELD.pop(located, None)
        if inner is not None:
            inner.hold.release()
            inner.writer.forget()


def read_until_end(lock: Path) -> None:
    """Share a lock file until the stage of this thread ends; where there is none, until the process ends."""
    descriptor, key = open_lock(lock), (_STAGE.get(), lock)
    try:
        take(descriptor, fcntl.LOCK_SH, lock.parent)
    except BaseException:
        os.close(descriptor)
        raise
    with _READING:
        before, _READ[key] = _READ.get(key), descriptor
    if before is not None:
        os.close(before)


def _end_reading(key: tuple[object, Path]) -> None:
    descriptor = _READ.pop(key, None)
    if descriptor is not None:
        os.close(descriptor)


def releases_outputs(stage: Callable[P, T]) -> Callable[P, T]:
    """Let the function of a stage release, when it ends, the outputs that it leaves unfinished.

    After an InputError an output to which nothing was written is removed.
    """

    @wraps(stage)
    def run(*given: P.args, **named: P.kwargs) -> T:
        with _released():
            return stage(*given, **named)

    return run


@contextmanager
def _released() -> Iterator[None]:
    before, error, stage = dict(_HELD), None, object()
    outer = _STAGE.set(stage)
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        _STAGE.reset(outer)
        for key in [one for one in list(_READ) if one[0] is stage]:
            _end_reading(key)
        new = [one for key, one in list(_HELD.items()) if before.get(key) is not one]
        for held in reversed(new):
            if held.stage is stage or (held.stage is None and not held.thread.is_alive()):  # its own, or of a thread that it started
                _release_after_stage(held, error)


def _release_after_stage(held: _Held, error: BaseException | None) -> None:
    if held.is_written():
        threading.Thread(target=_release_later, args=(held,), name="release", daemon=True).start()
        return
    if isinstance(error, StorageError):  # another request would be tried again for minutes, too
        _HELD.pop(held.writer.place.located, None)
        held.hold.abandon()
        return
    try:
        if isinstance(error, InputError) and not isinstance(error, LostOutput):
            with suppress(InputError, OSError):  # the stage's own error is the one to report
                held.writer.discard_untouched()
    finally:
        with suppress(InputError, OSError):
            release(held.writer.place)


def _release_later(held: _Held) -> None:
    for thread in held.left:
        thread.join()
    with _OPENING:
        if _HELD.get(held.writer.place.located) is held:
            with suppress(InputError, OSError, StorageError):  # nobody is there to report it to
                release(held.writer.place)
