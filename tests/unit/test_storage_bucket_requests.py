"""What is asked of a bucket's service: the parts of a large file, and a lease whose renewal got through without an answer. The store is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from raydense.errors import LostOutput
from raydense.storage import Place, bucket, bucket_place
from raydense.storage.lease import Lease

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
