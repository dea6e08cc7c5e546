"""Whether a query is answered now, as probes ask: all that ask at once share one query, however long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from raydense.serving.refusal import Unavailable

_WITHIN_S = 5.0
_AGAIN_S = 2.0  # for which a query that was answered shows that the next will be


class Readiness:
    """Asks a query by `ask`."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._ask, self._answered = ask, -_AGAIN_S
        self._asking: asyncio.Task[object] | None = None

    async def check(self) -> None:
        """Returns where a query is answered, or was just now; Unavailable where that takes too long, or what `ask` raises."""
        if time.monotonic() - self._answered <= _AGAIN_S:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait_for(asyncio.shield(self._asking), _WITHIN_S)
        except TimeoutError:
            raise Unavailable(f"no query is answered within {_WITHIN_S:g} s") from None
        self._answered = time.monotonic()
