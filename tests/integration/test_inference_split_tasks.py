"""Splitting by Ray tasks gives the bytes of splitting in one process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import raydense.inference.split as splitting
from raydense.data.store import CorpusWriter
from raydense.inference.settings import SplitSettings
from raydense.storage import Draft


@pytest.mark.usefixtures("ray_cluster")
def test_tasks_give_the_bytes_of_one_process(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 30
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {}), 7)
    texts = [f"What causes the fever? Rivers freeze in winter {i}. Old bridges carry no one home! " * (i % 5 + 1) for i in range(count)]
    writer.add(pa.table({"passage_id": [f"d{i}" for i in range(count)], "title": [""] * count, "text": texts}))
    values = {"corpus": str(writer.finish().path), "model": str(tiny_folder), "length": 15, "shard_rows": 11}
    monkeypatch.setattr(splitting, "_ROWS", 4)
    here = splitting.split(SplitSettings(**values, output=str(tmp_path / "here")))
    monkeypatch.setattr(splitting, "_FEW", 0)
    by_tasks = splitting.split(SplitSettings(**values, output=str(tmp_path / "tasks")))
    assert by_tasks.files == here.files
    assert by_tasks.rows > count
