"""kill -9 in the middle of mining: the second run keeps what was committed and equals an undisturbed run."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import numpy as np
import pyarrow as pa
import pytest

from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table
from raydense.mining.mine import mine
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact, Draft

QUERIES, DEPTH, PASSAGES = 12_000, 100, 3_000
MINE = """
import sys
from raydense.mining.mine import mine
from raydense.mining.settings import MineSettings
folder, output = sys.argv[1:]
names = ("run", "corpus", "queries", "qrels")
mine(MineSettings(output=output, **{name: f"{folder}/{name}" for name in names}))
"""


def write_table(folder: Path, kind: str, table: pa.Table, parts: int = 1) -> None:
    draft = Draft.open(folder, kind, {"test": kind})
    for part in range(parts):
        size = table.num_rows // parts
        commit_table(draft, f"{kind}-{part:05d}.parquet", table.slice(part * size, size))
    draft.finish(table.num_rows)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(5)
    draft = Draft.open(root / "corpus", "corpus", {"test": "corpus"})
    writer = CorpusWriter(draft, 1_000)
    ids = [f"p{i}" for i in range(PASSAGES)]
    writer.add(pa.table({"passage_id": ids, "title": [""] * PASSAGES, "text": [f"text {i % 2_500}" for i in range(PASSAGES)]}))
    writer.finish()
    queries = np.array([f"q{i}" for i in range(QUERIES)])
    write_table(root / "queries", "queries", pa.table({"query_id": queries, "text": queries}))
    positive = np.array(ids)[rng.integers(0, PASSAGES, QUERIES)]
    write_table(root / "qrels", "qrels", pa.table({"query_id": queries, "passage_id": positive, "relevance": np.ones(QUERIES, np.int32)}))
    hits = np.concatenate([rng.permutation(PASSAGES)[:DEPTH] for _ in range(QUERIES)])
    rank = np.tile(np.arange(1, DEPTH + 1), QUERIES)
    run = pa.table({"query_id": np.repeat(queries, DEPTH), "passage_id": np.array(ids)[hits], "rank": rank, "score": -rank.astype(float)})
    write_table(root / "run", "run", run, parts=3)
    return root


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("examples-*.parquet"))}


def test_a_killed_mine_continues_and_equals_an_undisturbed_one(world: Path):
    output = world / "killed"
    process = forked.Popen([sys.executable, "-c", MINE, str(world), str(output)], stderr=subprocess.DEVNULL)
    commits = output / ".work" / "commits"
    while process.poll() is None and (not commits.is_dir() or len(list(commits.glob("*.json"))) < 2):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it finished before it could be killed"
    assert not (output / "manifest.json").exists()
    before = {p.name: p.stat().st_mtime_ns for p in output.glob("examples-*.parquet")}
    assert len(before) >= 2

    folders = {name: str(world / name) for name in ("run", "corpus", "queries", "qrels")}
    continued = mine(MineSettings(output=str(output), **folders))
    whole = mine(MineSettings(output=str(world / "whole"), **folders))

    recorded = {f.path for f in continued.files}
    assert len(recorded) >= 4, "several parts, or the test proves nothing"
    after = {p.name: p.stat().st_mtime_ns for p in output.glob("examples-*.parquet")}
    kept = [name for name in before if after[name] == before[name]]
    assert len(kept) >= len(before) - 1, "only a file whose commit was not recorded may be made again"
    assert len(kept) >= 2
    assert digests(continued.path) == digests(whole.path)
    assert continued.fingerprint == whole.fingerprint == Artifact.open(output).fingerprint
    assert continued.summary == whole.summary
