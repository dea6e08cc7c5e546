"""The stage `topics`: a table of all queries, made once; vectors of passages are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_embeddings

import raydense as rd
from raydense.data.tables import read_table
from raydense.errors import InputError

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_every_query_has_a_topic(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((3_000, 8)).astype(np.float32)
    write_embeddings(tmp_path / "vectors", vectors, queries="print")
    settings = rd.TopicsSettings(embeddings=str(tmp_path / "vectors"), output=str(tmp_path / "topics"), size=100)
    made = rd.topics(settings)
    assert {key: made.summary[key] for key in ("topics", "queries", "model")} == {"topics": 30, "queries": "print", "model": "m"}
    table = read_table(made.path, "topics")
    assert table["query_id"].to_pylist() == [f"q{row}" for row in range(3_000)]
    sizes = np.bincount(table["topic"].to_numpy(), minlength=30)
    assert len(sizes) == 30
    assert sizes.min() > 20
    assert sizes.max() < 300
    again = rd.topics(settings.model_copy(update={"output": str(tmp_path / "again")}))
    assert [file.sha256 for file in again.files] == [file.sha256 for file in made.files]
    assert rd.topics(settings).fingerprint == made.fingerprint


def test_vectors_of_passages_are_refused(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "vectors", np.ones((10, 4), np.float32))
    with pytest.raises(InputError, match="holds vectors of passages, not of queries; encode with --queries"):
        rd.topics(rd.TopicsSettings(embeddings=str(tmp_path / "vectors"), output=str(tmp_path / "topics")))
