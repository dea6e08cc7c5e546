"""Lines of progress: no rate before there is one, and start-up time does not count."""

from __future__ import annotations

import pytest

from raydense.runtime import progress


def test_a_rate_is_that_of_the_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.Progress("encode", 100, "passages", 20) as shown:
        for seconds, done in ((50.0, 20), (70.0, 30), (90.0, 50)):
            clock[0] = seconds
            shown.set(done)
    assert capsys.readouterr().err.splitlines() == [
        "encode: continues after 20 of 100 passages",
        "encode: 20/100 passages (20%)",
        "encode: 30/100 passages (30%)",
        "encode: 50/100 passages (50%), 1.0/s, 50s left",
        "encode: 30 passages in 1m30s, 0.3/s",
    ]
