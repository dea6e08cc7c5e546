"""Threads of a training that outlived its interrupt: nobody writes its output until they have ended, and a run that goes on waits for them."""

from __future__ import annotations

import threading

from raydense.runtime.exiting import ends_before_ray
from raydense.runtime.progress import say
from raydense.storage import Place, stays_held

# By the output of their training: a program, as a notebook, may go on after Ctrl-C.
_LEFT: dict[str, list[threading.Thread]] = {}


def leave(output: Place, thread: threading.Thread) -> None:
    """Until `thread` has ended, no other process writes the output, and a training that goes on in this one waits for it."""
    _LEFT.setdefault(output.located, []).append(thread)
    stays_held(output, thread)
    ends_before_ray(thread)


def wait_for_left(output: Place) -> None:
    """Before a training goes on in this process: wait until the threads of the interrupted one have ended, which write the same files."""
    left = [thread for thread in _LEFT.pop(output.located, []) if thread.is_alive()]
    if not left:
        return
    say("train: the interrupted run ends after the step, and the phase of a refresh, that is at work; waits for it")
    try:
        for thread in left:
            while thread.is_alive():
                thread.join(0.5)  # for ever it could not be interrupted
    finally:
        if left := [thread for thread in left if thread.is_alive()]:
            _LEFT[output.located] = left
