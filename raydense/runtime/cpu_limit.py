"""How many CPUs a container may use: the quota of its control group, which the affinity of a process does not show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def cpu_limit(mounted: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """The CPUs that this process may use by the least quota of its control group and of those around it; infinite where there is none.

    `mounted` is where the control groups are, of either version, `groups` lists those of the process.
    """
    quotas = (_quota(folder) for group in _groups(mounted, groups) for folder in (group, *group.parents))
    return min(quotas, default=math.inf)


def _groups(mounted: Path, groups: Path) -> Iterator[Path]:
    """The folders that may have the quota. In a container the path is often one of the host, and the quota at the top."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield mounted / path.lstrip("/")
            elif "cpu" in controllers.split(","):
                yield mounted / "cpu" / path.lstrip("/")


def _quota(folder: Path) -> float:
    """The quota of a control group in CPUs: time of CPUs per time. Infinite where it has none."""
    with suppress(OSError, ValueError):  # no such group, or "max"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        return quota / period
    with suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf
    return math.inf
