"""How fast the passage store opens, how much memory it holds, and how fast it reads: `python benchmarks/store.py [PASSAGES]`.

Writes a corpus of short texts to a temporary folder (2 million passages by default, 21 million are Wikipedia's), opens it in a fresh process,
and prints one table. The files were just written, so they are read from the page cache: the figures are those of the store.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.store import CorpusWriter, PassageStore
from raydense.storage import Draft

_STEP = 50_000
_ASKED = 100_000
_BATCH = 1_000


def write(folder: Path, count: int) -> float:
    """Write `count` passages; returns the seconds it took."""
    start = time.perf_counter()
    writer = CorpusWriter(Draft.open(folder, "corpus", {"passages": count}), 500_000)
    for first in range(0, count, _STEP):
        number = pc.cast(pa.array(np.arange(first, min(first + _STEP, count))), pa.string())
        text = pc.binary_join_element_wise("passage", number, "says little, in a sentence of about a dozen words in all", " ")
        writer.add(pa.table({"passage_id": pc.binary_join_element_wise("p", number, ""), "title": number, "text": text}))
    writer.finish()
    return time.perf_counter() - start


def own_memory() -> float:
    """MiB of this process's memory that is not mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def rate(count: int, read: Callable[[slice], object]) -> float:
    """Things a second, of so many in batches of `_BATCH`."""
    start = time.perf_counter()
    for at in range(0, count, _BATCH):
        read(slice(at, at + _BATCH))
    return count / (time.perf_counter() - start)


def measure(folder: str) -> dict[str, float]:
    """Open the corpus in this process and read it."""
    before, start = own_memory(), time.perf_counter()
    store = PassageStore(folder)
    store.take(np.array([len(store) - 1]))
    found = {"open and first passage, s": time.perf_counter() - start}
    rows = np.random.default_rng(0).integers(0, len(store), _ASKED)
    ids = store.ids(rows)
    assert np.array_equal(store.rows_of(ids), rows)
    found["own memory after all ids were mapped, MiB"] = own_memory() - before
    found["ids to rows, a second"] = rate(_ASKED, lambda part: store.rows_of(ids[part]))
    found["random passages, a second"] = rate(_ASKED, lambda part: store.passages(rows[part]))
    in_order = np.arange(min(_ASKED, len(store)))
    found["passages in order, a second"] = rate(len(in_order), lambda part: store.passages(in_order[part]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passages", type=int, nargs="?", default=2_000_000)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    count = given.passages
    with tempfile.TemporaryDirectory() as folder:
        seconds = write(Path(folder) / "corpus", count)
        size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
        run = [sys.executable, __file__, "--measure", str(Path(folder) / "corpus")]
        found = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    rows = {"passages": count, "on disk, MiB": size / 2**20, "written, a second": count / seconds, **found}
    for name, value in rows.items():
        print(f"| {name:<42} | {value:>12,.2f} |" if value < 10 else f"| {name:<42} | {value:>12,.0f} |")


if __name__ == "__main__":
    main()
