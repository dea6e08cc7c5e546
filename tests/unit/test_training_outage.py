"""What a training does with a store that is away for a while."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydense.errors import InputError, StorageError
from raydense.storage import Place
from raydense.training.ending import Ending
from raydense.training.outage import Latest, outlasting


class Clock:
    """A clock that sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("error", [StorageError("s3://b/k: failed for 120 s"), OSError(28, "No space left on device")])
def test_ten_minutes_are_outlasted_and_an_hour_is_not(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    clock = Clock(monkeypatch)

    def put(away_until: float) -> float:
        if clock.now < away_until:
            raise error
        return clock.now

    assert 600 <= outlasting(lambda: put(600), "an upload") < 660
    begun = clock.now
    with pytest.raises(OSError, match=error.args[-1]) as caught:
        outlasting(lambda: put(begun + 3600), "an upload")
    assert caught.value is error
    assert clock.now - begun < 1800, "torch would end the workers that wait"


def test_a_fault_that_time_does_not_heal_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def refuse() -> None:
        raise InputError("no such bucket", "s3://b", "make it")

    with pytest.raises(InputError):
        outlasting(refuse, "an upload")
    assert clock.now == 0


def test_small_work_never_holds_its_caller_and_may_fail() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go_on.wait()
        raise StorageError("away")

    latest = Latest("status")
    latest.do(slow)
    assert begun.wait(60)
    latest.do(lambda: done.append("left out"))
    go_on.set()
    latest.close()
    assert done == []


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """While its item is True the store of a training cannot be reached."""
    state = [True]

    def reached(path: Place) -> str | None:
        if state[0]:
            raise StorageError(f"{path}: failed for 120 s")
        return "begun"

    monkeypatch.setattr(Place, "read_text", reached)
    monkeypatch.setattr("raydense.training.ending.newest_state", reached)
    before = signal.getsignal(signal.SIGTERM)
    yield state
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_in_an_outage_asks_the_workers_to_save_when_it_is_over(tmp_path: Path, away: list[bool]) -> None:
    def signalled() -> None:
        with Ending(Place.of(tmp_path), 10) as ending, ending.following():
            signal.raise_signal(signal.SIGTERM)
            ending.look()
            assert not any(tmp_path.iterdir())
            away[0] = False
            ending.look()
            assert len(list(tmp_path.iterdir())) == 1
            ending.check(7)

    with pytest.raises(SystemExit) as caught:
        signalled()
    assert caught.value.code == 128 + signal.SIGTERM


def test_a_signal_before_the_steps_ends_at_once_also_in_an_outage(
    tmp_path: Path, away: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, Ending(Place.of(tmp_path), 10):
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert "continues from the newest checkpoint" in capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, away: list[bool]) -> Clock:
    """Of a training that is at its first step, whose store can be reached."""
    away[0] = False
    monkeypatch.setattr("raydense.training.ending.newest_state", lambda shared: None)
    return Clock(monkeypatch)


def test_a_second_signal_ends_at_once_but_not_the_same_one_to_the_process_and_its_group(tmp_path: Path, clock: Clock) -> None:
    reached: list[str] = []

    def signalled() -> None:
        with Ending(Place.of(tmp_path), 10) as ending, ending.following():
            signal.raise_signal(signal.SIGTERM)
            ending.look()
            clock.now += 0.5
            signal.raise_signal(signal.SIGTERM)
            ending.look()
            reached.append("waits for the step")
            clock.now += 1
            signal.raise_signal(signal.SIGTERM)
            reached.append("goes on")

    with pytest.raises(SystemExit) as caught:
        signalled()
    assert caught.value.code == 128 + signal.SIGTERM
    assert reached == ["waits for the step"]


def test_workers_that_do_not_end_are_waited_for_five_minutes(tmp_path: Path, clock: Clock) -> None:
    def signalled() -> None:
        with Ending(Place.of(tmp_path), 10) as ending, ending.following():
            signal.raise_signal(signal.SIGTERM)
            while True:
                ending.look()
                clock.now += 10
                assert clock.now < 3600, "waits for ever"

    with pytest.raises(SystemExit) as caught:
        signalled()
    assert caught.value.code == 128 + signal.SIGTERM
    assert 300 < clock.now <= 310
