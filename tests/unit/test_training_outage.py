"""What a training does with a store that is away for a while."""

from __future__ import annotations

import threading
import time

import pytest

from raydense.errors import InputError, StorageError
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
    assert (done, latest.idle()) == ([], True)
