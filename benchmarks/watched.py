"""Runs a command and watches the memory of every process below it, the object store, and the disk, from /proc.

`run` is what benchmarks of whole commands share. Memory of a process is its resident set, mapped files included; memory of all is what
cannot be taken back: anonymous pages of each process, and shared memory (the object store) once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_EVERY_S = 0.25


@dataclass
class Peaks:
    """The most that was held at one time, in bytes; `processes` by name, mapped files included. `cpu` has the seconds of each process."""

    processes: dict[str, int] = field(default_factory=dict)
    cpu: dict[int, float] = field(default_factory=dict)
    together: int = 0  # anonymous pages of all, and the store, at one moment
    object_store: int = 0
    spilled: int = 0

    @property
    def process(self) -> int:
        return max(self.processes.values(), default=0)

    def facts(self) -> dict[str, Any]:
        facts = asdict(self) | {"process": self.process}
        del facts["cpu"]
        return facts


@dataclass(frozen=True)
class Watched:
    """A command that has ended, or was killed: its exit status, seconds, and what it held."""

    status: int
    seconds: float
    peaks: Peaks
    said: str


def run(command: Sequence[str], log: Path, end_when: Callable[[], bool] | None = None) -> Watched:
    """Run `command` to its end, its output in `log`; with `end_when`, kill all of its processes as soon as that is true.

    They are also killed where this one is ended, by Ctrl-C or in the main thread by SIGTERM: they have a session of their own, which no
    signal to this one reaches.
    """
    peaks, begun = Peaks(), time.perf_counter()
    with open(log, "ab") as out, _ended_by_sigterm():
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        over = threading.Event()
        known: set[int] = {process.pid}
        watcher = threading.Thread(target=_watch, args=(process.pid, known, peaks, over))
        try:
            watcher.start()
            while process.poll() is None:
                if end_when and end_when():
                    _kill(process.pid, known)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_EVERY_S)
        except BaseException:
            _kill(process.pid, known)
            raise
        finally:
            over.set()
            if watcher.ident:
                watcher.join()
    if end_when:
        _kill(process.pid, known)
    return Watched(process.returncode, time.perf_counter() - begun, peaks, log.read_text(errors="replace"))


def held_at_most() -> int:
    """The most bytes that this process held; not ru_maxrss, which begins with what the process that started it held."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """In the block, which is entered before a command is started, SIGTERM ends it as an error does; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _kill(root: int, known: set[int]) -> None:
    """Kill all of them, with those that have started since the last look."""
    _follow(root, known, _parents())
    for one in sorted(known):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _watch(root: int, known: set[int], peaks: Peaks, over: threading.Event) -> None:
    while not over.wait(_EVERY_S):
        _look(root, known, peaks)


def _look(root: int, known: set[int], peaks: Peaks) -> None:
    parents = _parents()
    _follow(root, known, parents)
    anonymous, shared = 0, 0
    for process in known & parents.keys():
        with suppress(OSError):
            peaks.cpu[process] = _cpu(process)
            name, resident, own, store = _memory(process)
            peaks.processes[name] = max(peaks.processes.get(name, 0), resident)
            anonymous, shared = anonymous + own, max(shared, store)
    peaks.together = max(peaks.together, anonymous + shared)
    peaks.object_store = max(peaks.object_store, shared)
    peaks.spilled = max(peaks.spilled, _spilled(known))


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                found[int(entry.name)] = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _follow(root: int, known: set[int], parents: dict[int, int]) -> None:
    """Add the descendants of what is known; one that was seen stays, also after its parent has ended."""
    known.intersection_update(parents.keys() | {root})
    grown = True
    while grown:
        below = {process for process, parent in parents.items() if parent in known}
        grown = not below <= known
        known |= below


def _memory(process: int) -> tuple[str, int, int, int]:
    """Name, resident bytes, anonymous bytes and shared bytes of a process."""
    words = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line)

    def size(key: str) -> int:
        return int(words.get(key, "0").split()[0]) * 1024

    return _name(process, words["Name"].strip()), size("VmRSS"), size("RssAnon"), size("RssShmem")


def _cpu(process: int) -> float:
    """The seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _name(process: int, name: str) -> str:
    line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    if line.startswith("ray::"):
        return line.split(" ")[0].split("(")[0]
    return "raydense" if " raydense " in f"{line} " and "ray/_private" not in line else name


def _spilled(known: set[int]) -> int:
    """Bytes that Ray wrote from its object store to disk, in the session folder that a raylet names."""
    total = 0
    for process in known:
        with suppress(OSError):
            if b"raylet" in Path(f"/proc/{process}/cmdline").read_bytes()[:200]:
                session = next((w for w in Path(f"/proc/{process}/cmdline").read_text().split("\0") if "--session_dir=" in w), "")
                folders = Path(session.partition("=")[2] or "/nonexistent").glob("ray_spilled_objects*")
                total += sum(f.stat().st_size for folder in folders for f in folder.rglob("*") if f.is_file())
    return total
