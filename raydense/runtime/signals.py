"""The signals that tell a command to end, and how a program takes them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

_taken = threading.Event()
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def handle(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], Any]) -> dict[signal.Signals, Any]:
    """Let `handler` take these signals, except those that are ignored, as SIGHUP is under `nohup`; returns what took them, for `restore`.

    It takes one SIGHUP: where a terminal is closed, the shell and the kernel send one each. To be called in the main thread.
    """

    def take(number: int, frame: FrameType | None) -> None:
        _taken.set()
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        handler(number, frame)

    return {number: signal.signal(number, take) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}


def taken() -> bool:
    """Whether a handler that `handle` set has taken a signal."""
    return _taken.is_set()


def restore(before: dict[signal.Signals, Any]) -> None:
    """Set the handlers that `handle` returned again, except of a SIGHUP that was taken."""
    for number, handler in before.items():
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
