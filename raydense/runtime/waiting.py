"""Says that a stage waits for room on the cluster: Ray itself waits without a word, and for as long as it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from raydense.runtime.progress import say

_WAITS_S, _LOOK_S = 30.0, 5.0
_LEAVES_S = 5.0  # for a look that is under way: nothing is to ask a Ray that is being ended


class Waiting:
    """`with Waiting("train", waits):` says so once `waits()` has held for half a minute, and again after it did not.

    It looks from a thread of its own, which stands still as long as the cluster's head is away; a look that fails counts for nothing.
    `waits` must not start a Ray, as much of Ray's interface does where there is none any more.
    """

    def __init__(self, stage: str, waits: Callable[[], bool]) -> None:
        self._stage, self._waits = stage, waits
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="room", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(_LEAVES_S)

    def _watch(self) -> None:
        since: float | None = None
        said = False
        while not self._left.wait(_LOOK_S):
            now = time.monotonic()
            try:
                since = (since or now) if self._waits() else None
            except Exception:  # of any class, as the head is away or this Ray ends: what fails is a message, not the stage
                continue
            late = since is not None and now - since > _WAITS_S
            if late and not said:
                say(f"{self._stage}: waits for CPUs or GPUs that others hold, or for nodes that are to come (`ray status` tells)")
            said = late
