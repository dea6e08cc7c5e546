"""Makes batches ahead of the step, in a thread: tokenizers release Python's global lock, so the step is hardly slower."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_AHEAD = 3


def prefetched(make: Callable[[int], Item], start: int, stop: int) -> Iterator[tuple[int, Item]]:
    """Yields (step, make(step)) for start..stop-1, made up to three steps ahead; an error of `make` is raised here."""
    made: queue.Queue[tuple[int, Item | None, BaseException | None]] = queue.Queue(_AHEAD)
    left = threading.Event()

    def work() -> None:
        for step in range(start, stop):
            try:
                result: tuple[int, Item | None, BaseException | None] = (step, make(step), None)
            except BaseException as error:  # raised again in the caller's thread
                result = (step, None, error)
            while not left.is_set():
                try:
                    made.put(result, timeout=1)
                    break
                except queue.Full:
                    continue
            if left.is_set() or result[2] is not None:
                return

    threading.Thread(target=work, name="batches", daemon=True).start()
    try:
        for _ in range(start, stop):
            step, item, error = made.get()
            if error is not None:
                raise error
            yield step, item  # type: ignore[misc]
    finally:
        left.set()
