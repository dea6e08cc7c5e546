"""The live line of a pipeline: it follows meters, and what is committed where the meters lie on other machines."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from raydense.inference import live_line
from raydense.storage import Draft


def test_what_is_committed_counts_where_no_meter_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(tmp_path / "out", "embeddings", {"x": 1})
    shown: dict[int, threading.Event] = {number: threading.Event() for number in (10, 15, 17, 40)}
    monkeypatch.setattr(live_line, "_LOOK_EVERY_S", 0.01)
    real = live_line.Progress.set

    def noted(progress: live_line.Progress, done: int, note: str = "") -> None:
        shown[done].set()
        real(progress, done, note)

    monkeypatch.setattr(live_line.Progress, "set", noted)
    with live_line.live_line("encode", draft, "passages", 40, 10) as committed:
        assert shown[10].wait(60)
        committed(5)
        assert shown[15].wait(60)
        live_line.Meter(draft, "a").count(7)
        assert shown[17].wait(60)
    assert shown[40].is_set()
