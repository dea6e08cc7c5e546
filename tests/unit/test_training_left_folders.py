"""What workers that were killed left on a machine."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from raydense.storage import Place
from raydense.training.checkpoints import Checkpoints


def test_folders_of_killed_workers_go_at_once_or_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine: Any = None

    def folder_of(output: str, rank: int, written: float) -> Path:
        made = Checkpoints(Place.of(f"/{output}"), engine, rank, lambda: None)._new_folder()
        (made / "shard.pt").write_bytes(b"x")
        for path in (made / "shard.pt", made):
            os.utime(path, (written, written))
        return made

    now = time.time()
    own, other_rank = folder_of("a", 0, now), folder_of("a", 1, now)
    old = [folder_of("a", 2, now - 2 * 86_400), folder_of("b", 0, now - 2 * 86_400)]
    new = folder_of("a", 0, now)
    assert not own.exists()
    assert not any(folder.exists() for folder in old)
    assert sorted(tmp_path.iterdir()) == sorted([other_rank, new])
