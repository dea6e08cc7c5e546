"""The outputs that this process writes. A stage that ends releases those that it left unfinished, so that another process can continue them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

from raydense.errors import InputError, LostOutput, StorageError
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


_HELD: dict[str, _Held] = {}  # by `Place.located`; the end of the process releases them, too
_OPENING = threading.Lock()


def acquire(writer: Writer, work: Place) -> None:
    """Acquire the right to write the output whose work folder is `work`. LostOutput if another process or thread has it.

    A thread runs one stage at a time: what it still holds of the same output is of a stage that failed.
    """
    with _OPENING:
        there = _HELD.get(writer.place.located)
        if there is not None and there.thread is not threading.current_thread() and there.thread.is_alive():
            fix = "wait for it, or give another --output"
            raise LostOutput("another thread of this process is writing here", writer.place, fix)
        release(writer.place)
        _HELD[writer.place.located] = _Held(work.hold(), writer, threading.current_thread())


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
    held = _HELD.pop(place.located, None)
    if held is not None:
        held.hold.end()


def forget_within(place: Place) -> None:
    """Release the outputs in one whose files were deleted, and remove what this machine keeps of them elsewhere."""
    for located in [one for one in _HELD if one.startswith(f"{place.located}/")]:
        inner = _HELD.pop(located)
        inner.hold.release()
        inner.writer.forget()


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
    before, error = dict(_HELD), None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        own = [one for key, one in list(_HELD.items()) if before.get(key) is not one and one.thread is threading.current_thread()]
        for held in reversed(own):
            _let_go(held, error)


def _let_go(held: _Held, error: BaseException | None) -> None:
    if isinstance(error, StorageError):  # another request would be tried again for minutes, too
        _HELD.pop(held.writer.place.located, None)
        held.hold.abandon()
        return
    if isinstance(error, InputError) and not isinstance(error, LostOutput):
        with suppress(InputError, OSError):  # the stage's own error is the one to report
            held.writer.discard_untouched()
    with suppress(InputError, OSError):
        release(held.writer.place)
