"""How long mining takes, and how much memory it holds: `python benchmarks/mine.py [queries] [hits of each]`.

Writes a corpus of 1,000,000 short passages, a run of random hits (50,000 queries with 200 each by default) and one judgement per query,
then mines 8 negatives of each query in a fresh process, and prints its CPU time, wall time and peak memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pyarrow as pa

import raydense as rd
from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table
from raydense.storage import Draft

_PASSAGES = 1_000_000
_STEP = 10_000


def write(folder: Path, queries: int, hits: int) -> None:
    """Write corpus, queries, qrels and run."""
    writer = CorpusWriter(Draft.open(folder / "corpus", "corpus", {"of": "mine"}), 250_000)
    for first in range(0, _PASSAGES, _STEP):
        ids = [f"p{i}" for i in range(first, first + _STEP)]
        writer.add(pa.table({"passage_id": ids, "title": [""] * _STEP, "text": [f"passage {name} says little" for name in ids]}))
    writer.finish()
    random = np.random.default_rng(1)
    names = pa.array([f"q{i}" for i in range(queries)])
    _write(folder / "queries", "queries", [pa.table({"query_id": names, "text": names})])
    judged = pa.array([f"p{i}" for i in random.integers(_PASSAGES, size=queries)])
    _write(folder / "qrels", "qrels", [pa.table({"query_id": names, "passage_id": judged, "relevance": np.ones(queries, np.int32)})])
    passages = pa.array([f"p{i}" for i in range(_PASSAGES)])
    _write(folder / "run", "run", (_block(names.slice(at, _STEP), passages, hits, random) for at in range(0, queries, _STEP)))


def _block(queries: pa.Array, passages: pa.Array, hits: int, random: np.random.Generator) -> pa.Table:
    found = np.concatenate([random.choice(_PASSAGES, hits, replace=False, shuffle=False) for _ in range(len(queries))])
    rank = np.tile(np.arange(1, hits + 1, dtype=np.int32), len(queries))
    query = queries.take(pa.array(np.repeat(np.arange(len(queries)), hits)))
    return pa.table({"query_id": query, "passage_id": passages.take(pa.array(found)), "rank": rank, "score": (-rank).astype(np.float32)})


def _write(folder: Path, kind: str, tables: object) -> None:
    draft = Draft.open(folder, kind, {"of": "mine"})
    rows = 0
    for number, table in enumerate(tables):  # type: ignore[call-overload]
        commit_table(draft, f"{kind}-{number:05d}.parquet", table)
        rows += len(table)
    draft.finish(rows)


def measure(folder: Path) -> dict[str, float]:
    """Mine in this process."""
    start = time.perf_counter()
    inputs = {name: str(folder / name) for name in ("run", "corpus", "queries", "qrels")}
    rd.mine(rd.MineSettings(**inputs, negatives=8, output=str(folder / "examples")))
    used = getrusage(RUSAGE_SELF)
    return {"CPU s": used.ru_utime + used.ru_stime, "wall s": time.perf_counter() - start, "peak MiB": used.ru_maxrss / 1024}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
        sys.exit()
    count, each = (int(word) for word in (*sys.argv[1:], *("50000", "200")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), count, each)
        done = subprocess.run([sys.executable, __file__, "--measure", folder], check=True, stdout=subprocess.PIPE, text=True)
    print(f"{count * each:,} rows of a run: " + ", ".join(f"{name} {value:,.1f}" for name, value in json.loads(done.stdout).items()))
