"""The right of one process to write an output in a bucket: a small file there, which its owner renews.

Every write of it is conditional on the version that was read. So exactly one of two processes that compete for it continues, also
when one was disconnected and returns after the other took it over.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import Any, Protocol

import psutil

from raydense.errors import InputError

WRITER = "writer.json"
RENEWED_EVERY_S, FRESH_S = 15.0, 60.0
# The outputs that this process writes.
_OWN: set[str] = set()


class _Conditional(Protocol):
    """A folder of a bucket."""

    def __truediv__(self, name: str) -> Any: ...


class Lease:
    """Held until `release`. InputError if another process holds it and renewed it less than a minute ago."""

    def __init__(self, work: _Conditional) -> None:
        self._file = work / WRITER
        self._place = str(work).rpartition("/")[0]
        self._owner = {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        self._ended, self._writing, self._lost = threading.Event(), threading.Lock(), False
        content, self._version = self._file.read_version()
        # what lies in an output of this process is nobody else's, whatever the last one wrote there
        if not any(self._place.startswith(f"{other}/") for other in _OWN):
            self._refuse(_owner(content))
        if not self._write():
            self._refuse(_owner(self._file.read()) or {"host": "another machine", "pid": 0, "time": time.time()})
        _OWN.add(self._place)
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def _write(self) -> bool:
        version = self._file.replace(json.dumps({**self._owner, "time": time.time()}).encode(), self._version)
        self._version = version or self._version
        return version is not None

    def _refuse(self, other: dict[str, Any] | None) -> None:
        if other is None:
            return
        here = other["host"] == self._owner["host"]
        gone = here and (other["pid"] == self._owner["pid"] or not psutil.pid_exists(other["pid"]))
        age = time.time() - other["time"]
        if not gone and age < FRESH_S:
            what = f"another process is writing here (process {other['pid']} of {other['host']}, {max(age, 0):.0f} s ago)"
            raise InputError(what, self._place, f"wait for it, or, where it is gone, {FRESH_S:.0f} s; or give another --output")

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY_S):
            with suppress(Exception):  # the work itself meets and reports what is wrong
                self.confirm()

    def confirm(self) -> None:
        """Renew it; InputError if another process has taken over the output."""
        with self._writing:
            if self._ended.is_set():
                return
            self._lost = self._lost or not self._write()
            if self._lost:
                what = "another process has taken this output over, while the bucket could not be reached from here"
                raise InputError(what, self._place, "let that process finish it, or end it and run this command again")

    def release(self) -> None:
        self._ended.set()
        with self._writing:
            _OWN.discard(self._place)
            if not self._lost and self._write():
                self._file.delete()


def _owner(content: bytes | None) -> dict[str, Any] | None:
    try:
        return json.loads(content or b"null")
    except ValueError:
        return None
