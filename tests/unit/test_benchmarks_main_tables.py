"""Which limit of pseudo-labels `main_tables.py` tries next, and what it says of runs that failed; no run is started."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import main_tables

NONE_LEFT = "ended with 1\nno example is left"


class Scripted(main_tables.Runs):
    """Runs that end as they are told; where the list is over, so is the time."""

    def __init__(self, output: Path, said: list[str]) -> None:
        self.given, self.failed, self.left, self.tried = argparse.Namespace(output=output, model=output), [], said, []

    def run(self, recipe: Path, output: Path, changes: dict[str, Any]) -> str:
        if not self.left:
            return ""
        self.tried.append(changes["pseudo.s_pos"])
        return self.left.pop(0)


@pytest.mark.parametrize(
    ("said", "tried", "noted", "failed"),
    [
        ([""], [0.9], 0.9, 0),
        ([NONE_LEFT, ""], [0.9, 0.7], 0.7, 0),
        ([NONE_LEFT], [0.9], 0.7, 0),  # the next sitting tries 0.7
        ([NONE_LEFT] * 3, [0.9, 0.7, 0.5], 0.5, 1),
        (["ended with 1\nno memory"], [0.9], 0.9, 1),
    ],
)
def test_a_lower_limit_is_tried_where_this_run_left_no_example(
    said: list[str], tried: list[float], noted: float, failed: int, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    runs = Scripted(tmp_path, list(said))
    main_tables._table(runs, tmp_path / "set", 1, 5e-5, 100)
    assert runs.tried == tried
    assert json.loads((tmp_path / "set/seed-1.json").read_text())["s_pos"] == noted
    assert len(runs.failed) == failed


def test_no_rate_is_chosen_from_earlier_runs_where_a_try_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_tables, "_try", lambda runs, folder, rate: rate == 2e-5)
    monkeypatch.setattr(main_tables, "_choose", lambda given, folder: pytest.fail("chosen"))
    runs = Scripted(tmp_path, [])
    runs.given.rates = [2e-5, 5e-5]
    with main_tables.ThreadPoolExecutor(1) as pool:
        main_tables._tables(runs, pool, tmp_path / "set")
