"""Merges the requests of one app that come together, within the limits that the app says of itself."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from raydense.serving.merged import MOST, Asked
from raydense.serving.refusal import Reply
from raydense.serving.request_metrics import RequestMetrics

LIMITS = "raydense-limits"  # the header by which an app says its limits
LARGE = 2 * 2**10  # bytes of a body, with some thirty queries: a larger one goes alone
TOGETHER = 16 * 2**10  # bytes of the bodies that are merged
_SMALL_HITS = 1 / 8  # of the hits that are found together: a request that asks for more goes alone, too


@dataclass(frozen=True)
class Limits:
    """What an app says of itself: the seconds that a request may take, how many merged requests its processes handle at once, how many hits
    (queries times passages) one may ask for, how many passages of each query a re-ranker scores, the hash of the token that callers need, and
    whether it answers those alone who ask for it as `local` host.
    """

    seconds: float = 30.0
    at_once: int = 2
    hits: int = 50_000
    depth: int = 0
    token: str = ""
    local: bool = False

    @classmethod
    def of(cls, header: str) -> Limits:
        """Those in the header of an app, which may be of a later version than this proxy and say more."""
        return cls(**{name: value for name, value in json.loads(header).items() if name in cls.__dataclass_fields__})


UNKNOWN = Limits()  # those of an app that has not said any yet


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its reply."""

    asked: Asked
    reply: asyncio.Future[Reply]
    hits: int
    large: bool


class Merging:
    """The requests of one app: they wait while as many are in progress as the app handles at once, and those that wait go together.

    Large ones go one by one, and leave a place to the others: who asks one question does not wait for those who ask thousands.
    """

    def __init__(self, send: Callable[[list[Asked]], Awaitable[list[Reply]]]) -> None:
        self._send = send
        self._small: deque[_Waiting] = deque()
        self._large: deque[_Waiting] = deque()
        self._sending: dict[asyncio.Task[None], bool] = {}  # whether it is a large one
        self._large_last = False
        self.limits, self.known, self.metrics = UNKNOWN, False, RequestMetrics()
        self.learning: asyncio.Task[None] | None = None
        self.learned = 0.0  # when, by time.monotonic()

    async def ask(self, asked: Asked) -> Reply:
        """The reply of the app."""
        loop = asyncio.get_running_loop()
        hits = asked.hits(self.limits.depth) if len(asked.body) <= LARGE else 0
        large = len(asked.body) > LARGE or hits > max(self.limits.hits * _SMALL_HITS, self.limits.depth)
        waiting, entry = self._large if large else self._small, _Waiting(asked, loop.create_future(), hits, large)
        waiting.append(entry)
        loop.call_soon(self._start)  # those that come with it go with it
        try:
            return await entry.reply
        except asyncio.CancelledError:  # its time is over, or its caller has gone: its body goes, too
            with suppress(ValueError):
                waiting.remove(entry)
            raise

    def _start(self) -> None:
        while len(self._sending) < self.limits.at_once and (batch := self._next()):
            task = asyncio.get_running_loop().create_task(self._answer(batch))
            self._sending[task] = self._large_last = batch[0].large
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._start()

    def _next(self) -> list[_Waiting]:
        """A large request, or small ones; none where no caller waits for one."""
        for waiting in (self._large, self._small):
            while waiting and waiting[0].reply.done():  # it is about to leave
                waiting.popleft()
        places = self.limits.at_once - 1
        if self._large and (sum(self._sending.values()) < places or (not places and not (self._large_last and self._small))):
            return [self._large.popleft()]
        batch: list[_Waiting] = []
        size = hits = 0
        while self._small and len(batch) < MOST:
            one = self._small[0]
            if batch and (size + len(one.asked.body) > TOGETHER or hits + one.hits > self.limits.hits):
                break
            self._small.popleft()
            if not one.reply.done():
                batch.append(one)
                size, hits = size + len(one.asked.body), hits + one.hits
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        try:
            async with asyncio.timeout(self.limits.seconds):
                replies = await self._send([one.asked for one in batch])
        except Exception as error:
            for one in batch:
                if not one.reply.done():
                    one.reply.set_exception(error)
            return
        for one, reply in zip(batch, replies, strict=True):
            if not one.reply.done():
                one.reply.set_result(reply)
