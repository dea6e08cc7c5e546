"""Threads that still wait for Ray when the process ends: they end before Ray frees what they read, or they would crash the process."""

from __future__ import annotations

import atexit
import threading

from raydense.runtime.ray_internals import kill_actors

_ENDS_S = 3.0


def ends_before_ray(thread: threading.Thread) -> None:
    """At the end of the process end this job's actors, for whose answers `thread` waits, and wait a moment for it.

    Ray's call looks for signals once a second, also after Ray's own work at exit, which is done later than this and frees the object that
    does so. The actors end with the process anyway.
    """
    atexit.register(_end, thread)


def _end(thread: threading.Thread) -> None:
    if thread.is_alive():
        kill_actors()
        thread.join(_ENDS_S)
