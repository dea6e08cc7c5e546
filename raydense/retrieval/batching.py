"""Merges small searches of several callers into one, on one thread; uses NumPy and threads, not Ray.

This is only done if a query's hits do not depend on the rest of its batch: for exact indexes, whose scores are rescored, and for
BM25. Other indexes are searched call by call, so that an answer never depends on other callers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np

from raydense.retrieval.merge import Hits, Rows, Scores

MERGED = 1_024  # most queries of a merged search; a larger call is searched alone
Parts = tuple[Any, ...]


@dataclass
class Call:
    """A waiting call: the queries as a shard takes them, their number, and the other arguments of `nearest`: k first."""

    parts: Parts
    queries: int
    how: tuple[int, ...]
    hits: Future[Hits] = field(default_factory=Future)


def next_batch(waiting: deque[Call], most: int) -> list[Call]:
    """Takes the first call from `waiting`, and the calls right after it with the same arguments, up to `most` queries in all."""
    batch = [waiting.popleft()]
    queries = batch[0].queries
    while waiting and waiting[0].how == batch[0].how and queries + waiting[0].queries <= most:
        queries += waiting[0].queries
        batch.append(waiting.popleft())
    return batch


class Batching:
    """Answers calls from many threads by one `nearest` at a time; calls that arrive meanwhile are searched together.

    `join` concatenates the queries of several calls; None searches each call alone.
    """

    def __init__(self, nearest: Callable[..., Hits], join: Callable[[list[Parts]], Parts] | None) -> None:
        self._nearest, self._join = nearest, join
        self._coming: SimpleQueue[Call] = SimpleQueue()
        threading.Thread(
            target=self._serve, daemon=True
        ).start()  # one thread: OpenMP keeps a team of threads for each thread that calls it

    def ask(self, parts: Parts, queries: int, *how: int) -> Hits:
        """What `nearest(*parts, *how)` gives for one call, [queries, at most k]; raises what it raises."""
        call = Call(parts, queries, how)
        self._coming.put(call)
        return call.hits.result()

    def _serve(self) -> None:
        waiting: deque[Call] = deque()
        while True:
            if not waiting:
                waiting.append(self._coming.get())
            while not self._coming.empty():
                waiting.append(self._coming.get())
            batch = next_batch(waiting, MERGED if self._join else 0)
            try:
                for call, hits in zip(batch, self._search(batch), strict=True):
                    call.hits.set_result(hits)
            except Exception as error:
                for call in batch:
                    call.hits.set_exception(error)

    def _search(self, batch: list[Call]) -> list[Hits]:
        if len(batch) == 1 or self._join is None:
            return [self._nearest(*call.parts, *call.how) for call in batch]
        scores, rows = self._nearest(*self._join([call.parts for call in batch]), *batch[0].how)
        ends = np.cumsum([call.queries for call in batch])
        split: list[tuple[Scores, Rows]] = list(zip(np.split(scores, ends[:-1]), np.split(rows, ends[:-1]), strict=True))
        return split
