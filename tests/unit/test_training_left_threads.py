"""Threads of a training that outlive its end: nobody else writes its output until they have ended."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from raydense.errors import LostOutput
from raydense.storage import Draft, Place, releases_outputs
from raydense.storage.local_place import FileLock
from raydense.training.left_threads import leave, wait_for_left
from raydense.training.workers import Workers, leave_working


class _Busy(Workers):
    """In the middle of a step."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(nothing, False)
        self.over = threading.Event()

    def run(self) -> None:
        self.over.wait(60)


def test_an_interrupted_training_is_not_taken_over_while_its_workers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = _Busy()

    @releases_outputs
    def interrupted() -> None:
        draft = Draft.open(tmp_path / "x", "model", {})
        workers.start()
        try:
            raise KeyboardInterrupt
        finally:
            leave_working(workers, draft.located)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(LostOutput):
        Place.of(tmp_path / "x/.work").hold()
    releasing, opened, release = threading.Event(), threading.Event(), FileLock.release

    def slowly(lock: FileLock) -> None:
        releasing.set()
        opened.wait(0.2)
        release(lock)

    monkeypatch.setattr(FileLock, "release", slowly)
    workers.over.set()
    wait_for_left(Place.of(tmp_path / "x"))
    assert releasing.wait(60)
    draft = Draft.open(tmp_path / "x", "model", {})
    opened.set()
    assert draft.finish(0).rows == 0


def test_an_interrupted_wait_is_made_again(tmp_path: Path) -> None:
    class Left(threading.Thread):
        interrupts = 1

        def join(self, timeout: float | None = None) -> None:
            if self.interrupts:
                self.interrupts = 0
                raise KeyboardInterrupt
            over.set()
            super().join(timeout)

    over = threading.Event()
    left = Left(target=over.wait, args=(60,))
    left.start()
    leave(Place.of(tmp_path), left)
    with pytest.raises(KeyboardInterrupt):
        wait_for_left(Place.of(tmp_path))
    wait_for_left(Place.of(tmp_path))
    assert not left.is_alive()
