"""Progress: one line with count, rate and time left, rewritten on a terminal, and printed now and then elsewhere."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from raydense.runtime.metrics import show
from raydense.runtime.verbosity import is_quiet

_PLAIN_EVERY_S = 10.0
_LIVE_EVERY_S = 0.2
_RATE_AFTER_S = 1.0  # what came first says little of the rate
_MUTED = ContextVar("muted", default=False)


def say(line: str) -> None:
    """Print a line about the work to standard error, unless quiet; results go to standard output."""
    if not _silent():
        _write(f"{line}\n")


def say_error(line: str) -> None:
    """Print an error to standard error, also when quiet."""
    _write(f"{line}\n")


def _write(text: str) -> None:
    """Write to standard error; once its terminal is closed, or nobody reads it, the work goes on without, and so does what else writes to it."""
    if sys.stderr is None:  # closed before the start
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            return
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stderr.fileno())
            os.close(nowhere)


def _silent() -> bool:
    return _MUTED.get() or is_quiet()


@contextmanager
def muted() -> Iterator[None]:
    """This thread prints no progress in the block: another thread shows its own. Further threads, as that of `Waiting`, still print."""
    before = _MUTED.set(True)
    try:
        yield
    finally:
        _MUTED.reset(before)


def duration(seconds: float) -> str:
    """Seconds in words: 48s, 3m20s, 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def size(count: int) -> str:
    """Bytes in words: 120 MiB, 1.4 GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def pace(rate: float, unit: str) -> str:
    """A rate per second, or below one the seconds of each: 41.2/s, 17.3 s/step."""
    if rate >= 1:
        return f"{rate:,.1f}/s"
    one = f"{unit[:-3]}y" if unit.endswith("ies") else unit.removesuffix("s")
    return f"{1 / rate:,.1f} s/{one}"


class Progress:
    """`with Progress("encode", total, "passages") as p: p.add(n)`; `done_before` counts what an earlier run committed.

    Rate and time left are those since the first progress: starting workers takes long, and is shown as such.
    """

    def __init__(self, name: str, total: int, unit: str, done_before: int = 0) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = self.before = done_before
        self.starting = True  # no worker is known to have begun
        self._first: tuple[float, int] | None = None  # time and count of the first progress
        self.note = ""
        self.start = self._shown = self._exported = time.monotonic()
        self._silent = _silent()  # of the thread that starts it: others call `set`
        self._live = sys.stderr.isatty() and not self._silent

    def __enter__(self) -> Self:
        if self.before:
            say(f"{self.name}: continues after {self.before:,} of {self.total:,} {self.unit}")
        return self

    def add(self, n: int, note: str = "") -> None:
        """Count `n` more; the line is printed when it is due."""
        self.set(self.done + n, note)

    def set(self, done: int, note: str = "") -> None:
        """As `add`, with the total count."""
        self.done = done
        self.note = note or self.note
        now = time.monotonic()
        if self._first is None and done > self.before:
            self._first, self.starting = (now, done), False
        if now - self._exported >= _LIVE_EVERY_S or done == self.total:
            self._exported = now
            self._export()
        if now - self._shown >= (_LIVE_EVERY_S if self._live else _PLAIN_EVERY_S):
            self._shown = now
            self._show(self._line(now))

    def _export(self) -> None:
        show("done", self.done, stage=self.name, unit=self.unit)
        show("total", self.total, stage=self.name, unit=self.unit)

    def _line(self, now: float) -> str:
        if self.starting:
            return f"{self.name}: starting workers, {duration(now - self.start)} so far"
        rate = self._rate(now)
        speed = f", {pace(rate, self.unit)}" if rate > 0 else ""
        note = f", {self.note}" if self.note else ""
        if not self.total:  # the total is unknown
            return f"{self.name}: {self.done:,} {self.unit}{speed}{note}"
        left = f", {duration((self.total - self.done) / rate)} left" if rate > 0 else ""
        share = f" ({100 * self.done / self.total:.0f}%)"
        return f"{self.name}: {self.done:,}/{self.total:,} {self.unit}{share}{speed}{left}{note}"

    def _rate(self, now: float) -> float:
        """How many a second since the first progress; 0 where that is not known."""
        begun, before = self._first or (now, self.done)
        return (self.done - before) / (now - begun) if now - begun >= _RATE_AFTER_S else 0.0

    def _show(self, line: str) -> None:
        if self._live:
            _write(f"\r\x1b[2K{line}")
        elif not self._silent:
            say(line)

    def clear(self) -> None:
        """Take the line off the terminal, before something else is printed; it is shown again when it is due."""
        if self._live:
            _write("\r\x1b[2K")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()
        if kind is None and self.done > self.before:
            now = time.monotonic()
            rate = self._rate(now)
            speed = f", {pace(rate, self.unit)}" if rate > 0 else ""
            say(f"{self.name}: {self.done - self.before:,} {self.unit} in {duration(now - self.start)}{speed}")
