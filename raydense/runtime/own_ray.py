"""Watches the Ray that this process started: where its node ends, some calls would wait for ever, and others fail in Ray's own words."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from typing import Any

from raydense.runtime import signals
from raydense.runtime.progress import say_error
from raydense.runtime.ray_internals import own_node, own_node_ended

_LOOK_S = 1.0
_LOOKS = 2  # so that a Ray that is just being shut down is not taken for one that ended
_command = threading.Event()


def end_with_own_ray() -> None:
    """This process is a command: it ends where its own Ray does, which any other program is only told."""
    _command.set()


def watch_own_ray() -> None:
    """From now on, where the node of this process's own Ray ends by itself, say so and end the command, or interrupt the main thread."""
    threading.Thread(target=_watch, args=(own_node(),), name="own ray", daemon=True).start()


def _watch(node: Any) -> None:
    ended = 0
    while ended < _LOOKS:
        time.sleep(_LOOK_S)
        there = own_node_ended(node)
        if there is None or signals.taken():  # who ends this process may have ended its Ray, too
            return
        ended = ended + 1 if there else 0
    what = "its node on this machine has ended by itself, as it does where memory or the processor is taken by other work"
    say_error(f"Ray: {what}; what was committed is kept, and the same command continues")
    if _command.is_set():
        sys.stdout.flush()
        os._exit(1)  # not by a signal: what cleans up would ask the Ray that has ended, and wait for it
    _thread.interrupt_main()
