"""Logs that a stage waits for resources of the cluster: Ray itself waits silently and without limit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from raydense.runtime.progress import duration, say, size
from raydense.runtime.ray_internals import autoscaler_state

_WAITS_S, _LOOK_S = 30.0, 5.0
_AGAIN_S = 1800.0  # who looks at a log after hours is to see in its last lines what is wrong
_LEAVES_S = 5.0  # for a check in progress: none may reach a Ray that is shutting down


class Waiting:
    """`with Waiting("train", waits):` prints a line once `waits()` has been true for half a minute, and again each half hour; so for each later wait.

    A separate thread checks; it pauses while the cluster's head is away, and ignores a check that fails.
    `waits` must not start a Ray, as many of Ray's functions do after a shutdown.
    """

    def __init__(self, stage: str, waits: Callable[[], bool]) -> None:
        self._stage, self._waits = stage, waits
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="waiting", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(_LEAVES_S)

    def _watch(self) -> None:
        since: float | None = None
        due = _WAITS_S
        while not self._left.wait(_LOOK_S):
            now = time.monotonic()
            try:
                since = (since or now) if self._waits() else None
            except Exception:  # of any class, while the head is away or this Ray shuts down: only a message is lost
                continue
            if since is None:
                due = _WAITS_S
            elif (waited := now - since) > due:
                so_far = f", for {duration(waited)} so far" if due > _WAITS_S else ""
                what = "waits for CPUs, GPUs or memory in use by others, or for new nodes (see `ray status`)"
                say(f"{self._stage}: {what}{so_far}{_not_added()}")
                due = waited + _AGAIN_S


def _not_added() -> str:
    """What the cluster's autoscaler adds no node for, to end the line: no type of node has it, or there are as many nodes as may be."""
    with suppress(Exception):  # as in the check above
        state = autoscaler_state()
        refused = {_words(dict(request.resources_bundle)) for request in state.infeasible_resource_requests}
        refused |= {_group_words(requests_of(group)) for group in state.infeasible_gang_resource_requests}
        if refused:
            return f"; its autoscaler adds no node for {' or '.join(sorted(refused))} (work of any job)"
    return ""


def requests_of(group: Any) -> list[dict[str, float]]:
    """What each worker of a group asks for, of a group that Ray's autoscaler reports (`GangResourceRequest`), as those of a training are."""
    either = group.bundle_selectors[0].resource_requests if group.bundle_selectors else group.requests
    return [dict(sorted(request.resources_bundle.items())) for request in either]


def _group_words(requests: list[dict[str, float]]) -> str:
    return " and ".join(f"{count} x {words}" for words, count in Counter(map(_words, requests)).items())


def _words(bundle: dict[str, float]) -> str:
    found = [size(int(amount)) if name == "memory" else f"{amount:g} {name}" for name, amount in sorted(bundle.items())]
    return " with ".join(found)
