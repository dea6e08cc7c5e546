"""Threads that still wait for Ray when the process ends: they end before Ray frees what they read, or they would crash the process."""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress

from raydense.runtime.ray_internals import kill_actors

_ENDS_S, _AGAIN_S = 3.0, 0.2


def ends_before_ray(thread: threading.Thread) -> None:
    """At the end of the process kill the actors for whose answers `thread` waits, and wait a moment until it has ended.

    `ray.get` reads Ray's objects once a second. Ray frees them in its own atexit function, which was registered earlier and so runs after
    this one. The actors would end with the process anyway.
    """
    atexit.register(_end, thread)


def _end(thread: threading.Thread) -> None:
    def kill() -> None:
        with suppress(Exception):  # of any class, where the cluster is away
            while thread.is_alive():  # it may start an actor still
                kill_actors()
                thread.join(_AGAIN_S)

    if thread.is_alive():
        killing = threading.Thread(target=kill, name="exit", daemon=True)  # a call to a cluster that is away takes a minute
        killing.start()
        killing.join(_ENDS_S)
