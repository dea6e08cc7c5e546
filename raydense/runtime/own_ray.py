"""Watches the Ray that this process started: where its node ends, some calls would wait for ever, and others fail in Ray's own words."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time

from raydense.runtime.progress import say_error
from raydense.runtime.ray_internals import own_node_ended
from raydense.runtime.signals import handled

_LOOK_S = 1.0
_LOOKS = 2  # so that a Ray that is just being shut down is not taken for one that ended


def watch_own_ray() -> None:
    """Say so and end the command, or interrupt the main thread of another program, when the node of this process's own Ray has ended."""
    threading.Thread(target=_watch, name="own ray", daemon=True).start()


def _watch() -> None:
    ended = 0
    while ended < _LOOKS:
        time.sleep(_LOOK_S)
        there = own_node_ended()
        if there is None:
            return
        ended = ended + 1 if there else 0
    what = "its node on this machine has ended by itself, as it does where memory or the processor is taken by other work"
    say_error(f"Ray: {what}; what was committed is kept, and the same command continues")
    if handled(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        _thread.interrupt_main()
