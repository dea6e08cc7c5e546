"""What a process may use of its machine: the limits of its control group and of those around it, which affinity and psutil do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_MOUNTED, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# of the second and the first version: the limit, what is used, and what of that is cached files, which is given back when memory is short
_MEMORY = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def cpu_limit() -> float:
    """The CPUs that this process may use by the least quota around it; infinite where there is none."""
    return min(map(_quota, _groups("cpu")), default=math.inf)


def memory_total() -> int:
    """All bytes of this machine's memory, or the least limit of those around this process."""
    return min([psutil.virtual_memory().total, *(most for most, _ in _memory_limits())])


def memory_free() -> int:
    """The bytes that are available of this machine's memory, and within each limit around this process."""
    return min([psutil.virtual_memory().available, *(free for _, free in _memory_limits())])


def _groups(controller: str) -> Iterator[Path]:
    """The folders that may have a limit: of the control group, and of those around it, of either version.

    In a container the path is often one of the host, and the limit at the top. Under a scheduler or systemd it is in a group of the job.
    """
    with suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                group = _MOUNTED / (controller if controllers else "") / path.lstrip("/")
                yield from (group, *group.parents)


def _quota(folder: Path) -> float:
    """The quota of a control group in CPUs: time of CPUs per time. Infinite where it has none."""
    with suppress(OSError, ValueError):  # no such group, or "max"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        return quota / period
    with suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf
    return math.inf


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Of each limit around this process its bytes, and how many of them are free."""
    for folder in _groups("memory"):
        for limit, used, cached in _MEMORY:
            with suppress(OSError, ValueError):  # no such group, or "max"
                most = int((folder / limit).read_text())
                stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
                taken = int((folder / used).read_text()) - sum(int(stat.get(key, 0)) for key in cached)
                yield most, max(0, most - max(0, taken))
