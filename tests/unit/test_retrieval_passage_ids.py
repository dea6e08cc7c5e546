"""Passage ids by row, from a file of many batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from raydense.retrieval.passage_ids import PassageIds


@pytest.mark.parametrize("sizes", [[5], [3, 0, 1, 4, 2], [1] * 9])
def test_ids_of_rows_in_their_order(tmp_path: Path, sizes: list[int]) -> None:
    ids = [f"p{row}" for row in range(sum(sizes))]
    with pa.OSFile(str(tmp_path / "ids"), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("passage_id", pa.string())])) as writer:
        start = 0
        for size in sizes:
            writer.write_batch(pa.record_batch([pa.array(ids[start : start + size], pa.string())], ["passage_id"]))
            start += size
    found = PassageIds(cast(Any, SimpleNamespace(file=lambda _: tmp_path / "ids")))
    rng = np.random.default_rng(1)
    for rows in (np.array([], np.int64), np.array([len(ids) - 1]), rng.integers(0, len(ids), 20), np.arange(len(ids))[::-1]):
        assert found.take(rows).to_pylist() == [ids[row] for row in rows]
