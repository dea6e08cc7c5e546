"""Lines of progress: no rate before there is one, and start-up time does not count."""

from __future__ import annotations

import pytest

from raydense.runtime import progress


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [(41.23, "steps", "41.2/s"), (1.0, "steps", "1.0/s"), (1 / 17.3, "steps", "17.3 s/step"), (0.5, "queries", "2.0 s/query")],
)
def test_below_one_a_second_it_is_seconds_of_each(rate: float, unit: str, text: str) -> None:
    assert progress.pace(rate, unit) == text


def test_a_rate_is_that_of_the_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.Progress("encode", 100, "passages", 20) as shown:
        for clock[0], done in ((50.0, 20), (70.0, 30), (90.0, 50)):
            shown.set(done)
    assert capsys.readouterr().err.splitlines() == [
        "encode: continues after 20 of 100 passages",
        "encode: starting workers, 50s so far",
        "encode: 30/100 passages (30%)",
        "encode: 50/100 passages (50%), 1.0/s, 50s left",
        "encode: 30 passages in 1m30s, 1.0/s",
    ]


def test_what_is_done_within_a_second_has_no_rate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.Progress("search", 100, "queries") as shown:
        for clock[0], done in ((8.0, 50), (8.1, 100)):
            shown.set(done)
    assert capsys.readouterr().err == "search: 100 queries in 8s\n"


def test_workers_that_have_started_may_be_long_at_the_first_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.Progress("train", 100, "steps") as shown:
        for clock[0], starting in ((20.0, True), (40.0, False)):
            shown.starting = starting
            shown.set(0)
    assert capsys.readouterr().err.splitlines() == ["train: starting workers, 20s so far", "train: 0/100 steps (0%)"]
