"""How a run is cut into blocks of queries."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from inference_world import write_table

from raydense.data.runs import RunReader
from raydense.errors import InputError


def a_run(ids: str) -> pa.Table:
    """A run with a row for each letter, which is its query."""
    rank = [ids[:i].count(q) + 1 for i, q in enumerate(ids)]
    return pa.table({"query_id": list(ids), "passage_id": [f"p{i}" for i in range(len(ids))], "rank": rank, "score": [0.0] * len(ids)})


@pytest.mark.parametrize("cut", [2, 3, 4, 5])
def test_a_query_in_two_places_is_refused_wherever_the_files_are_cut(tmp_path: Path, cut: int) -> None:
    run = a_run("aabbcaad")
    write_table(tmp_path / "run", "run", run.slice(0, cut), run.slice(cut))
    with pytest.raises(InputError, match="the rows of query 'a' are not adjacent; sort the run by query and rank") as caught:
        RunReader(str(tmp_path / "run")).blocks(2, 10)
    assert str(tmp_path / "run") in str(caught.value)


def test_a_query_that_goes_on_in_the_next_file_is_one(tmp_path: Path) -> None:
    run = a_run("aabbbc")
    write_table(tmp_path / "run", "run", run.slice(0, 3), run.slice(3))
    blocks = RunReader(str(tmp_path / "run")).blocks(2, 2)
    assert [(b["start"], b["stop"], b["queries"], b["pairs"]) for b in blocks] == [(0, 5, 2, 4), (5, 6, 1, 1)]


def test_a_run_may_have_more_files_than_may_be_open(tmp_path: Path) -> None:
    run = a_run("aabbcc")
    write_table(tmp_path / "run", "run", *(run.slice(row, 1) for row in range(6)))
    before = len(os.listdir("/proc/self/fd"))
    reader = RunReader(str(tmp_path / "run"))
    reader.blocks(1, 2)
    assert reader.read(1, 5)["passage_id"].to_pylist() == ["p1", "p2", "p3", "p4"]
    assert len(os.listdir("/proc/self/fd")) == before
