"""What is added up of the processes of a watched command: at one moment, and of this process alone. No process is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import watched


def test_what_was_held_together_was_held_at_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([(10, 0), (1, 5), (4, 5)])
    monkeypatch.setattr(watched, "_parents", lambda: {1: 0})
    monkeypatch.setattr(watched, "_memory", lambda process: ("a", 0, *next(moments)))
    monkeypatch.setattr(watched, "_cpu", lambda process: 1.0)
    monkeypatch.setattr(watched, "_spilled", lambda known: 0)
    peaks = watched.Peaks()
    for _ in range(3):
        watched._look(1, {1}, peaks)
    assert (peaks.together, peaks.object_store) == (10, 5)
    assert peaks.facts() == {"processes": {"a": 0}, "together": 10, "object_store": 5, "spilled": 0, "process": 0}


def test_what_this_process_held_is_at_least_what_it_holds() -> None:
    now = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    assert watched.held_at_most() >= now // 2
