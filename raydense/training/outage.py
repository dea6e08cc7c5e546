"""Work with a store that is away for a while: it is done again, so that a training of days outlasts an outage of minutes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_OUTLASTS_S = 1200.0  # torch gives up a worker that the others wait for after half an hour
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


def outlasting(work: Callable[[], T], what: str) -> T:
    """What `work` returns. It is done again while a store, a disk or the network fails, for 20 minutes; then its OSError is raised."""
    end, pause = time.monotonic() + _OUTLASTS_S, _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except OSError as error:
            if time.monotonic() + pause > end:
                raise
            logging.getLogger(__name__).warning("%s failed, and is tried again: %s", what, error)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class Latest:
    """Does small work for a store in a thread, so that a step never waits for it. While one is done, and where it fails, others are left out."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._last: Future[Any] | None = None

    def do(self, work: Callable[[], Any]) -> None:
        """Do it, unless another one is being done."""
        if self._last is None or self._last.done():
            self._last = self._pool.submit(_unless_away, work)

    def close(self) -> None:
        """Wait for the one that is being done."""
        self._pool.shutdown()


def _unless_away(work: Callable[[], Any]) -> None:
    with suppress(OSError):
        work()
