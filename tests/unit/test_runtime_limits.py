"""The CPUs and the memory that a process may use, by the files of both versions of control groups."""

from __future__ import annotations

import math
from pathlib import Path

import psutil
import pytest

from raydense.runtime import limits, session

V2, V1 = "0::{}\n", "4:memory:/other\n3:cpu,cpuacct:{}\n0::/else\n"
V1_MEMORY = "4:memory:{}\n3:cpu,cpuacct:/other\n0::/else\n"
MIB = 2**20
V1_NONE = 9223372036854771712  # what the first version has where there is no limit


def _group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, object]) -> None:
    """A process in the control group `own`, and the files of this and of other groups."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    (tmp_path / "self").write_text(own)
    monkeypatch.setattr(limits, "_MOUNTED", tmp_path)
    monkeypatch.setattr(limits, "_OWN", tmp_path / "self")


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        (V2.format("/"), {"cpu.max": "400000 100000"}, 4),
        (V2.format("/"), {"cpu.max": "max 100000"}, math.inf),
        (V2.format("/a.slice/b.scope"), {"a.slice/cpu.max": "150000 100000", "a.slice/b.scope/cpu.max": "max 100000"}, 1.5),
        (V2.format("/../../kubepods/pod"), {"cpu.max": "50000 100000"}, 0.5),
        (V1.format("/docker/0f"), {"cpu/cpu.cfs_quota_us": 200000, "cpu/cpu.cfs_period_us": 100000}, 2),
        (V1.format("/"), {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, math.inf),
        (V1.format("/a"), {"cpu/a/cpu.cfs_quota_us": 300000, "cpu/a/cpu.cfs_period_us": 100000, "else/cpu.max": "1 1"}, 1),
        ("", {}, math.inf),
    ],
)
def test_the_least_quota_around_a_process_is_its_limit(
    own: str, files: dict[str, object], limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _group(tmp_path, monkeypatch, own, files)
    assert limits.cpu_limit() == limit


def _v2(group: str, most: object, used: int = 0, files: int = 0) -> dict[str, object]:
    stat = f"anon 1\nactive_file {files // 5}\ninactive_file {files - files // 5}"
    return {f"{group}memory.max": most, f"{group}memory.current": used, f"{group}memory.stat": stat}


def _v1(group: str, most: object, used: int = 0, files: int = 0) -> dict[str, object]:
    stat = f"inactive_file 1\ntotal_active_file {files // 5}\ntotal_inactive_file {files - files // 5}"
    named = {"limit_in_bytes": most, "usage_in_bytes": used, "stat": stat}
    return {f"memory/{group}memory.{name}": content for name, content in named.items()}


JOB = "/system.slice/slurmstepd.scope/job_1/step_0"


@pytest.mark.parametrize(
    ("own", "files", "total", "free"),
    [
        (V2.format("/"), _v2("", 300 * MIB, 400 * MIB, 300 * MIB), 300, 200),
        (V2.format("/"), _v2("", "max", 400 * MIB), None, None),
        (V2.format("/"), _v2("", 0, 400 * MIB), 0, 0),
        (V2.format(JOB), _v2("system.slice/", "max") | _v2(f"{JOB[1:]}/", "max") | _v2(f"{JOB[1:-7]}/", 300 * MIB, 250 * MIB), 300, 50),
        (V2.format("/a/b"), _v2("a/", 200 * MIB, 190 * MIB) | _v2("a/b/", 100 * MIB, 10 * MIB), 100, 10),
        (V2.format("/../../kubepods/pod"), _v2("", 300 * MIB), 300, 300),
        (V2.format("/a"), _v2("a/", 300 * MIB) | _v2("b/", MIB), 300, 300),
        (V1_MEMORY.format("/docker/0f"), _v1("", 300 * MIB, 200 * MIB, 150 * MIB), 300, 250),
        (V1_MEMORY.format("/slurm/job_1"), _v1("", V1_NONE) | _v1("slurm/job_1/", 300 * MIB, 250 * MIB), 300, 50),
        (V1_MEMORY.format("/"), _v1("", V1_NONE, 5 * MIB), None, None),
        ("", {}, None, None),
    ],
)
def test_the_least_memory_around_a_process_is_what_it_may_take(
    own: str, files: dict[str, object], total: int | None, free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached files count as free. None: that of the machine."""
    _group(tmp_path, monkeypatch, own, files)
    machine = psutil.virtual_memory()
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: machine)
    assert limits.memory_total() == (machine.total if total is None else total * MIB)
    assert limits.memory_free() == (machine.available if free is None else free * MIB)


def test_a_container_has_the_cores_of_its_quota_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.delenv(session.SHARERS, raising=False)
    for limit, cores in ((4.0, 4), (2.5, 2), (0.5, 1), (math.inf, 64)):
        monkeypatch.setattr(session, "cpu_limit", lambda limit=limit: limit)
        assert session.physical_cpus() == cores
