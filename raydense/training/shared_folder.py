"""Whether every worker sees the folder that it shares with the driver; a node whose disk is its own has another folder of this name, or none."""

from __future__ import annotations

import socket
import time
import uuid

from raydense.errors import InputError
from raydense.storage import Place

_MARK = "driver.txt"
_APPEARS_S = 60.0  # as long as a network file system may take to show what another machine wrote


def mark(shared: Place) -> str:
    """Write a mark into the folder, and return it: the driver does, for its workers."""
    text = uuid.uuid4().hex
    (shared / _MARK).write_text(text)
    return text


def refuse_other_folder(shared: Place, marked: str, output: str) -> None:
    """InputError unless the mark is there: what this worker writes there, as its checkpoints, would be lost with its node."""
    until = time.monotonic() + _APPEARS_S
    while (shared / _MARK).read_text() != marked:
        if time.monotonic() > until:
            what = f"is another folder on the node {socket.gethostname()}, which has a worker, than where the command runs"
            raise InputError(what, output, "give a folder that all nodes share, or a bucket")
        time.sleep(0.2)
