"""Vectors: the rows of several files, of which one at a time stays mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_embeddings

from raydense.retrieval.vectors import Vectors
from raydense.storage import Artifact


def mapped_of(folder: Path) -> set[str]:
    return {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.split()[-1].startswith(f"{folder}/embeddings-")
    }


def test_one_file_at_a_time_is_mapped(tmp_path: Path) -> None:
    """A file that the cache of a bucket has removed takes its disk as long as it is mapped."""
    rows = np.random.default_rng(3).standard_normal((50, 8)).astype(np.float16)
    folder = tmp_path / "vectors"
    write_embeddings(folder, rows, files=5)
    vectors = Vectors(folder)
    np.testing.assert_array_equal(vectors.take(np.array([0, 9, 25, 49])), rows[[0, 9, 25, 49]].astype(np.float32))
    assert len(mapped_of(folder)) == 1
    read = []
    for block in vectors.blocks(3, 48):
        read.append(block.copy())
        assert len(mapped_of(folder)) <= 2, "the one before is let go when the next is there"
    np.testing.assert_array_equal(np.concatenate(read), rows[3:48])
    del block
    assert len(mapped_of(folder)) == 1


def test_files_without_a_wanted_row_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be fetched, where they lie in a bucket."""
    rows = np.random.default_rng(3).standard_normal((50, 8)).astype(np.float16)
    write_embeddings(tmp_path / "vectors", rows, files=5)
    vectors, opened, there = Vectors(tmp_path / "vectors"), list[str](), Artifact.file
    monkeypatch.setattr(Artifact, "file", lambda artifact, name: opened.append(name) or there(artifact, name))
    wanted = np.array([3, 9, 30, 30, 39])
    np.testing.assert_array_equal(vectors.take(wanted), rows[wanted].astype(np.float32))
    assert opened == ["embeddings-00000.arrow", "embeddings-00003.arrow"]
    assert vectors.take(np.array([], np.int64)).shape == (0, 8)
    np.testing.assert_array_equal(np.concatenate(list(vectors.blocks(8, 21))), rows[8:21])
    assert opened[2:] == [f"embeddings-{number:05d}.arrow" for number in (0, 1, 2)]
