"""The CPUs that a container may use, by the files of both versions of control groups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from raydense.runtime import session
from raydense.runtime.cpu_limit import cpu_limit

V2, V1 = "0::{}\n", "4:memory:/other\n3:cpu,cpuacct:{}\n0::/else\n"


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        (V2.format("/"), {"cpu.max": "400000 100000\n"}, 4),
        (V2.format("/"), {"cpu.max": "max 100000\n"}, math.inf),
        (V2.format("/a.slice/b.scope"), {"a.slice/cpu.max": "150000 100000\n", "a.slice/b.scope/cpu.max": "max 100000\n"}, 1.5),
        (V2.format("/../../kubepods/pod"), {"cpu.max": "50000 100000\n"}, 0.5),
        (V1.format("/docker/0f"), {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (V1.format("/"), {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        (V1.format("/a"), {"cpu/a/cpu.cfs_quota_us": "300000\n", "cpu/a/cpu.cfs_period_us": "100000\n", "else/cpu.max": "1 1\n"}, 1),
        ("", {}, math.inf),
    ],
)
def test_the_least_quota_around_a_process_is_its_limit(own: str, files: dict[str, str], limit: float, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "self").write_text(own)
    assert cpu_limit(tmp_path, tmp_path / "self") == limit


def test_a_container_has_the_cores_of_its_quota_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.delenv(session.SHARERS, raising=False)
    for limit, cores in ((4.0, 4), (2.5, 2), (0.5, 1), (math.inf, 64)):
        monkeypatch.setattr(session, "cpu_limit", lambda limit=limit: limit)
        assert session.physical_cpus() == cores
