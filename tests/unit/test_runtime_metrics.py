"""Metrics where there is no Ray yet."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from raydense.runtime.metrics import show, time_taken


def test_nothing_is_shown_while_another_thread_imports_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is known before it is whole, and a stage's live line begins before its Ray."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    for maker in ("_gauge", "_histogram"):
        monkeypatch.setattr(f"raydense.runtime.metrics.{maker}", lambda name: pytest.fail(f"{name} is made"))
    show("done", 1, stage="encode", unit="passages")
    time_taken("shard_seconds", 0.1, index="i", shard="0")
