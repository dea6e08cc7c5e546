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
from functools import cache
from pathlib import Path
from typing import Any

from raydense.errors import LostOutput
from raydense.runtime.progress import say
from raydense.storage.place import delete_within

WRITER, CLOCK = "writer.json", "clock"
RENEWED_EVERY_S, FRESH_S = 15.0, 60.0
_LOOK_S = 5.0
_SETTLES_S = 10.0  # for a renewal on its way, where the bucket's service answers
# The outputs that this process writes.
_OWN: set[str] = set()


class Lease:
    """Held until `release`. LostOutput if another process holds it and lives; one that renews it no more is waited for, up to a minute.

    `work` is a folder of a bucket.
    """

    def __init__(self, work: Any) -> None:
        self._work, self._file = work, work / WRITER
        self._place = str(work).rpartition("/")[0]
        process = {"pid": os.getpid(), "started": _started(os.getpid()), "system": _system()}
        self._owner = {"host": socket.gethostname(), **process, "token": uuid.uuid4().hex}
        self._ended, self._writing, self._lost = threading.Event(), threading.Lock(), False
        content, self._version = self._file.read_version()
        there = _owner(content)
        # what lies in an output of this process is nobody else's, whatever the last one wrote there
        inside = any(self._place.startswith(f"{other}/") for other in _OWN)
        if there is not None and not inside:
            self._await_end(there)
        if not self._write():
            raise self._refusal(_owner(self._file.read()) or {"host": "another machine", "pid": 0}, 0)
        _OWN.add(self._place)
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def _write(self) -> bool:
        # the time is for people, and for earlier versions of raydense
        content = json.dumps({**self._owner, "time": time.time()}).encode()
        version = self._file.replace(content, self._version)
        if version is None:
            there, now = self._file.read_version()
            if (_owner(there) or {}).get("token") == self._owner["token"]:  # an earlier write of its own, whose answer was lost
                version = self._file.replace(content, now)
        self._version = version or self._version
        return version is not None

    def _await_end(self, other: dict[str, Any]) -> None:
        """Returns when the process of a lease has ended, as far as can be known here; LostOutput if it lives.

        A job that is tried again on another machine comes sooner than a minute after the end of the first try.
        """
        said = False
        while (ended := self._has_ended(other)) is not True and (age := self._age()) < FRESH_S:
            if ended is False:
                raise self._refusal(other, age)
            if not said:
                what = f"process {other['pid']} of {other['host']} was writing here {age:.0f} s ago; waits up to {FRESH_S - age:.0f} s to see whether it has ended"
                say(f"storage: {self._place}: {what}")
                said = True
            time.sleep(min(_LOOK_S, FRESH_S - age))
            content, version = self._file.read_version()
            if version != self._version:
                self._version, renewed = version, _owner(content)
                if renewed is None:  # it released the output, or finished it
                    return
                raise self._refusal(renewed, self._age())

    def _has_ended(self, other: dict[str, Any]) -> bool | None:
        """Whether the process of a lease has ended; None where that is not known.

        A process number says something only where the other's numbers are those that are seen here: not those of another container.
        """
        system = self._owner["system"]
        if system is None or (other["host"], other.get("system")) != (self._owner["host"], system):
            return None
        return bool(other["pid"] == self._owner["pid"] or _started(other["pid"]) != other["started"])

    def _age(self) -> float:
        """Seconds since the lease was renewed, by the bucket's clock: those of two machines may be minutes apart."""
        now, renewed = self._work / CLOCK, self._file.stat()
        now.write(b"now")
        found = now.stat()
        now.delete()
        return found.written - renewed.written if found and renewed else 0.0

    def _refusal(self, other: dict[str, Any], age: float) -> LostOutput:
        what = f"another process is writing here (process {other['pid']} of {other['host']}, {age:.0f} s ago)"
        return LostOutput(what, self._place, f"wait for it, or, where it is gone, {FRESH_S:.0f} s; or give another --output")

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY_S):
            with suppress(Exception):  # the work itself meets and reports what is wrong
                self.confirm()

    def confirm(self) -> None:
        """Renew it; LostOutput if another process has taken over the output."""
        with self._writing:
            if self._ended.is_set():
                return
            self._lost = self._lost or not self._write()
        self.check()

    def check(self) -> None:
        """LostOutput if the last renewal found that another process has taken over the output."""
        if self._lost:
            what = "another process has taken this output over, while the bucket could not be reached from here"
            raise LostOutput(what, self._place, "let that process finish it, or end it and run this command again")

    def release(self) -> None:
        self.abandon()
        with self._writing:
            if not self._lost and self._write():
                self._file.delete()

    def abandon(self) -> None:
        self._ended.set()
        _OWN.discard(self._place)
        if self._writing.acquire(timeout=_SETTLES_S):  # a renewal on its way would get in the way of the next stage's lease
            self._writing.release()

    def end(self) -> None:
        try:
            with suppress(LostOutput):
                self.confirm()
                delete_within(self._work, WRITER)
        except BaseException:
            self.abandon()
            raise
        self.abandon()
        if not self._lost:
            self._file.delete()


def _owner(content: bytes | None) -> dict[str, Any] | None:
    try:
        return json.loads(content or b"null")
    except ValueError:
        return None


@cache
def _system() -> str | None:
    """The boot of this machine and the process numbers that are seen in it (PID namespace); None where Linux does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process of this machine was started, in ticks since the boot; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
