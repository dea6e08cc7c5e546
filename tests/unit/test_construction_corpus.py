"""The corpus of `construct`, which is written piece by piece: the block of a gzip file is the whole file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydense.construction.construct import _pieces, _write_corpus
from raydense.construction.settings import ConstructSettings
from raydense.data.dataset import DatasetDraft
from raydense.data.store import CorpusWriter
from raydense.storage import Draft


@pytest.mark.parametrize("shard_rows", [7_000, 25_000])
def test_pieces_of_a_block_are_the_corpus_of_the_whole_block(shard_rows: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 20_000
    table = pa.table(
        {
            "passage_id": [f"p{n}" for n in range(rows)],
            "doc_id": [f"d{n // 3}" for n in range(rows)],
            "title": ["", "a title"] * (rows // 2),
            "text": [f"text {'x' * size}" for size in rng.integers(0, 20, rows)],
            "length": range(rows),
        }
    )
    mask = rng.random(rows) < 0.5
    mask[8_000:17_000] = False  # a piece of which nothing is left
    pq.write_table(table, tmp_path / "passages.parquet", row_group_size=9_000)
    pieces = list(_pieces(tmp_path / "passages.parquet", mask))
    assert sum(read for read, _ in pieces) == rows
    assert max(piece.num_rows for _, piece in pieces) <= 8_192
    settings = ConstructSettings(input="questions", output=str(tmp_path / "data"), shard_rows=shard_rows)
    dataset = DatasetDraft(settings.output, {"stage": "construct"})
    made = _write_corpus(settings, dataset, [(tmp_path, tmp_path / "passages.parquet")], [mask])
    writer = CorpusWriter(Draft.open(tmp_path / "whole", "corpus", {"stage": "construct"}), shard_rows)
    writer.add(table.filter(pa.array(mask)))
    assert [(file.path, file.sha256) for file in made.files] == [(file.path, file.sha256) for file in writer.finish().files]
