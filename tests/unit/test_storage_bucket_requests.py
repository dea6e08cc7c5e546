"""What is asked of a bucket's service: the parts of a large file, and a lease whose renewal got through without an answer. The store is in memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from raydense.errors import LostOutput
from raydense.storage import Place, bucket, bucket_place
from raydense.storage import lease as lease_module
from raydense.storage.lease import Lease, _started

WORK = "s3://there/out/.work"


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(bucket_place, "client", lambda *_: store)
    monkeypatch.setattr(bucket, "RETRIES", replace(bucket.RETRIES, patience_s=0.01, first_pause_s=0.001))


@pytest.fixture
def lease() -> Iterator[Lease]:
    held = Lease(Place.of(WORK))
    yield held
    held.abandon()


@pytest.mark.parametrize("gigabytes", [0.001, 80, 90, 5_000])
def test_a_file_of_any_size_has_no_more_parts_than_services_take(gigabytes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, asked = round(gigabytes * 1e9), dict[str, Any]()
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(size)

    def put(*_: Any, **given: Any) -> dict[str, str]:
        asked.update(given)
        return {"e_tag": "1", "version": ""}

    monkeypatch.setattr(obstore, "put", put)
    Place.of("s3://there/large").publish(tmp_path / "sparse")
    assert size / asked["chunk_size"] <= 10_000
    assert asked["chunk_size"] >= 5 << 20, "the least that a part may be"


def test_a_renewal_that_got_through_without_an_answer_is_no_other_writers(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put

    def unanswered(*given: Any, **more: Any) -> None:
        put(*given, **more)
        _away()

    with monkeypatch.context() as outage:
        outage.setattr(obstore, "put", unanswered)
        outage.setattr(obstore, "get", _away)
        with pytest.raises(OSError, match="the bucket's service failed"):
            lease.confirm()
    lease.confirm()
    lease.confirm()
    lease.release()
    assert not Place.of(f"{WORK}/writer.json").exists()


def _away(*_: Any) -> None:
    raise OSError("503 Slow Down")


def test_a_lease_that_another_process_took_meanwhile_is_lost(lease: Lease) -> None:
    taken = Lease(Place.of(WORK))
    with pytest.raises(LostOutput):
        lease.confirm()
    with pytest.raises(LostOutput):
        lease.confirm()
    taken.confirm()
    taken.abandon()


WRITER = f"{WORK}/writer.json"


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Give a lease of another process its age; each sleep makes it older, and calls what is given. Returns the ages at which it was looked at."""

    def given(age: float, meanwhile: Callable[[], Any] = lambda: None) -> list[float]:
        ages = [age]

        def sleep(seconds: float) -> None:
            ages.append(ages[-1] + seconds)
            meanwhile()

        monkeypatch.setattr(Lease, "_age", lambda _: ages[-1])
        monkeypatch.setattr(lease_module, "time", SimpleNamespace(time=time.time, sleep=sleep))
        return ages

    return given


def _held_elsewhere(**changed: Any) -> None:
    Place.of(WRITER).write(
        json.dumps({"host": "old-head", "pid": 7, "started": "1", "system": "another", "token": "t", **changed}).encode()
    )


def test_a_job_that_comes_soon_after_the_loss_of_its_first_try_waits(
    sleeps: Callable[..., list[float]], capfd: pytest.CaptureFixture[str]
) -> None:
    """As on Kubernetes, where each try is a new head; refused, it would use up one of its tries."""
    _held_elsewhere()
    ages = sleeps(25.0)
    held = Lease(Place.of(WORK))
    assert ages == [25, 30, 35, 40, 45, 50, 55, 60]
    held.confirm()
    held.release()
    (said,) = capfd.readouterr().err.splitlines()
    assert said == "storage: s3://there/out: process 7 of old-head was writing here 25 s ago; waits up to 35 s to see whether it has ended"


def test_a_writer_that_renews_its_lease_is_not_waited_for(sleeps: Callable[..., list[float]]) -> None:
    _held_elsewhere()
    ages = sleeps(10.0, lambda: _held_elsewhere(time=2.0))
    with pytest.raises(LostOutput, match=r"another process is writing here \(process 7 of old-head, 15 s ago\)"):
        Lease(Place.of(WORK))
    assert len(ages) == 2


def test_an_output_that_is_released_meanwhile_is_taken(sleeps: Callable[..., list[float]]) -> None:
    _held_elsewhere()
    ages = sleeps(10.0, Place.of(WRITER).delete)
    Lease(Place.of(WORK)).release()
    assert len(ages) == 2


def test_a_writer_that_is_seen_to_live_is_not_waited_for(lease: Lease, sleeps: Callable[..., list[float]]) -> None:
    lease.abandon()
    own, parent = json.loads(Place.of(WRITER).read() or b""), os.getppid()
    _held_elsewhere(host=own["host"], system=own["system"], pid=parent, started=_started(parent))
    ages = sleeps(10.0)
    with pytest.raises(LostOutput, match="another process is writing here"):
        Lease(Place.of(WORK))
    assert len(ages) == 1
