"""Mining by Ray tasks gives the files of mining in one process; finished blocks are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import raydense.mining.mine as mining
from raydense.errors import InputError
from raydense.mining.mine import mine
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact
from tests.mining_world import write_world

pytestmark = pytest.mark.usefixtures("ray_cluster")


def mined(root: Path, output: str, **given: object) -> Artifact:
    folders = {name: str(root / name) for name in ("run", "corpus", "queries", "qrels")}
    return mine(MineSettings.read({**folders, "output": str(root / output), "negatives": 3, **given}))


def test_tasks_give_the_files_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    texts = [f"text {i % 30}" for i in range(40)]
    run = {f"q{q}": [(f"p{p}", float(-rank)) for rank, p in enumerate(rng.permutation(40)[: rng.integers(1, 20)])] for q in range(25)}
    qrels = [(f"q{q}", f"p{rng.integers(40)}", 1) for q in range(0, 25, 2)]
    write_world(tmp_path, texts, qrels, run, cuts=3)
    monkeypatch.setattr(mining, "BLOCK_ROWS", 30)
    here = mined(tmp_path, "here")
    monkeypatch.setattr(mining, "_FEW", 0)
    by_tasks = mined(tmp_path, "tasks")
    assert len(here.files) > 3
    assert by_tasks.files == here.files
    assert by_tasks.summary == here.summary
    unknown = dict(list(run.items())[:4]) | {"q4": [("p99", 1.0)]}
    write_world(tmp_path / "bad", texts, qrels, unknown)
    with pytest.raises(InputError, match="names passage 'p99'"):
        mined(tmp_path / "bad", "out")
