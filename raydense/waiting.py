"""Says that a stage waits for room on the cluster: Ray itself waits without a word, and for as long as it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from raydense.progress import say

_WAITS_S, _LOOK_S = 30.0, 5.0


class Waiting:
    """`with Waiting("train", waits):` says so once `waits()` has held for half a minute, at the start or after a node was lost.

    It looks from a thread of its own, which stands still as long as the cluster's head is away.
    """

    def __init__(self, stage: str, waits: Callable[[], bool]) -> None:
        self._stage, self._waits = stage, waits
        self._left = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="room", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def _watch(self) -> None:
        since: float | None = None
        said = False
        while not self._left.wait(_LOOK_S):
            now = time.monotonic()
            since = (since or now) if self._waits() else None
            late = since is not None and now - since > _WAITS_S
            if late and not said:
                say(f"{self._stage}: waits for CPUs or GPUs that others hold, or for nodes that are to come (`ray status` tells)")
            said = late
