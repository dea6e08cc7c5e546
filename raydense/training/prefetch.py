"""Makes batches ahead of the step, in threads: tokenizers release Python's global lock, so the step is hardly slower."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
AHEAD = 3


class Prefetch(Generic[Item]):
    """Makes `make(step)` up to three steps ahead; `waited` is how many seconds steps have waited for theirs, the first of each range apart.

    Up to `threads` of them are made at the same time, which a step that waits has need of; they come in order all the same.
    """

    def __init__(self, make: Callable[[int], Item], threads: int = 1) -> None:
        self._make, self._threads, self.waited = make, threads, 0.0

    def range(self, start: int, stop: int) -> Iterator[tuple[int, Item]]:
        """Yields (step, make(step)) for start..stop-1; an error of `make` is raised here, at its step."""
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="batches")
        coming: deque[Future[Item]] = deque()
        try:
            coming.extend(pool.submit(self._make, step) for step in range(start, min(stop, start + AHEAD)))
            for step in range(start, stop):
                began = time.perf_counter()
                item = coming.popleft().result()
                self.waited += time.perf_counter() - began if step > start else 0.0
                if step + AHEAD < stop:
                    coming.append(pool.submit(self._make, step + AHEAD))
                yield step, item
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
