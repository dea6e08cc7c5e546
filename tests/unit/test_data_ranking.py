"""A run is imported in blocks of complete queries: the same rows and ranks as from one block, and the line of each fault."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydense.data import runs
from raydense.data.formats import lines, ranking
from raydense.data.importing import import_dataset
from raydense.data.settings import ImportSettings
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact

LINES = [f"q{q} Q0 d{d} 1 {score} tag" for q in (5, 2, 9) for d, score in enumerate((0.5, 2.0, 0.5, -1.0, 2.0))]


def imported(path: Path, output: Path, content: list[str]) -> Artifact:
    path.write_text("".join(f"{line}\n" for line in content))
    import_dataset(ImportSettings(format="trec", input=str(path), output=str(output)))
    return Artifact.open(output / "run", "run")


@pytest.fixture(params=[1, 64, 1 << 24])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(lines, "BLOCK_BYTES", request.param)
    return request.param


def test_each_block_gives_the_same_bytes(tmp_path: Path, block: int) -> None:
    run = imported(tmp_path / "a.run", tmp_path / "out", LINES)
    rows = read_table(tmp_path / "out" / "run", "run").to_pylist()
    expected = [(f"q{q}", f"d{d}", rank) for q in (5, 2, 9) for rank, d in enumerate((1, 4, 0, 2, 3), 1)]
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in rows] == expected
    file = run.file("run.parquet")
    whole = tmp_path / "whole.parquet"
    pq.write_table(pq.read_table(file), whole, compression="zstd")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == hashlib.sha256(whole.read_bytes()).hexdigest()
    assert run.rows == 15


def test_lines_of_a_query_that_are_not_adjacent_are_ranked_together(tmp_path: Path, block: int, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = [LINES[i] for i in np.random.default_rng(1).permutation(len(LINES))]
    imported(tmp_path / "a.run", tmp_path / "out", mixed)
    rows = read_table(tmp_path / "out" / "run", "run").to_pylist()
    order = list(dict.fromkeys(line.split()[0] for line in mixed))
    assert [row["query_id"] for row in rows] == [query for query in order for _ in range(5)]
    assert [row["score"] for row in rows] == [2.0, 2.0, 0.5, 0.5, -1.0] * 3
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5] * 3
    assert "are not adjacent: the file is ranked as a whole, in memory" in capsys.readouterr().err


def test_columns_that_a_run_does_not_have_are_not_held(tmp_path: Path) -> None:
    ids = {"query_id": ["q1", "q2"], "passage_id": ["p1", "p2"]}
    tables = [pa.table({**ids, "passage": ["text", "text"]}), pa.table({**ids, "passage_id": ["p3", "p4"], "passage": [1, 2]})]
    assert ranking.write_run(tmp_path / "run.parquet", "run", lambda: iter(tables), str) == 4
    rows = pq.read_table(tmp_path / "run.parquet").to_pylist()
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in rows] == [
        ("q1", "p1", 1),
        ("q1", "p3", 2),
        ("q2", "p2", 1),
        ("q2", "p4", 2),
    ]


@pytest.mark.parametrize("at", [6, 14])
def test_the_line_of_a_passage_that_is_named_twice(tmp_path: Path, block: int, at: int) -> None:
    again = [*LINES[:at], LINES[at].replace(LINES[at].split()[2], LINES[at - 1].split()[2]), *LINES[at + 1 :]]
    with pytest.raises(InputError, match=rf"a\.run:{at + 1}: names passage 'd{(at - 1) % 5}' twice for query"):
        imported(tmp_path / "a.run", tmp_path / "out", again)
    assert not (tmp_path / "out").exists()


def test_row_groups_are_those_of_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_GROUP_ROWS", 4)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    file = pq.ParquetFile(imported(tmp_path / "a.run", tmp_path / "out", LINES).file("run.parquet"))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [4, 4, 4, 3]
