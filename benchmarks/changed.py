"""How the work of a partial refresh grows with the queries: `python benchmarks/changed.py [--queries 50000 100000 200000 500000]`.

For each number of queries, writes two runs of 20 random hits a query, in files of 2,048 queries as `search` does, which agree in half of the
ranks, and examples of 8 negatives. Prints the CPU time and the peak memory of finding the negatives that stand, and of looking up the texts
of the queries block by block as `rerank` does, each in a process of its own; and a digest of what was found.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from mine import _names, peak, write_artifact, write_corpus

from raydense.data.runs import RunReader
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.inference import rerank
from raydense.refresh.changed import standing
from raydense.storage import Artifact

_HITS, _BLOCK, _NEGATIVES, _PASSAGES = 20, 2_048, 8, 100_000


def write(folder: Path, queries: int) -> None:
    random = np.random.default_rng(1)
    names, runs, negatives = _names("q", 0, queries), ([], []), []  # type: ignore[var-annotated]
    for first in range(0, queries, _BLOCK):
        ids = names.slice(first, _BLOCK)
        start = random.integers(_PASSAGES, size=(len(ids), 1)) + np.arange(_HITS) * 4_001
        other = np.where(random.random(start.shape) < 0.5, start, start + 1)
        for tables, rows in zip(runs, (start, other), strict=True):
            tables.append(_run(ids, rows % _PASSAGES))
        negatives.append(start[:, :_NEGATIVES] % _PASSAGES)
    for name, tables in zip(("now", "before"), runs, strict=True):
        write_artifact(folder / name, "run", tables)
    write_artifact(folder / "queries", "queries", [pa.table({"query_id": names, "text": names})])
    lists = pa.array(list(np.concatenate(negatives)), pa.list_(pa.int64()))
    write_artifact(folder / "examples", "examples", [pa.table({"query_id": names, "positives": lists.slice(0), "negatives": lists})])


def _run(ids: pa.Array, rows: np.ndarray) -> pa.Table:
    query = ids.take(pa.array(np.repeat(np.arange(len(ids)), _HITS)))
    passage = pa.compute.binary_join_element_wise("p", pa.compute.cast(pa.array(rows.ravel()), pa.string()), "")
    rank = np.tile(np.arange(1, _HITS + 1, dtype=np.int32), len(ids))
    return pa.table({"query_id": query, "passage_id": passage, "rank": rank, "score": (-rank).astype(np.float32)})


def stands(folder: Path) -> bytes:
    runs = (Artifact.open(folder / name, "run") for name in ("now", "before"))
    return standing(read_table(folder / "examples", "examples"), *runs, PassageStore(folder.parent / "corpus")).tobytes()


def texts(folder: Path) -> bytes:
    """The queries of each block, from the rows of the run to their texts, as the tasks of `rerank` look them up."""
    run, prints, found = RunReader(str(folder / "now")), Artifact.open(folder / "queries", "queries").fingerprint, hashlib.sha256()
    for block in run.blocks(256, _HITS):
        ids = run.read(block["start"], block["stop"])["query_id"]
        found.update("".join(rerank._queries(str(folder / "queries"), prints).texts(ids, "now")).encode())
    return found.digest()


def measure(work: Callable[[Path], bytes], folder: Path) -> str:
    begun = time.process_time()
    digest = hashlib.sha256(work(folder)).hexdigest()[:16]
    return f"{time.process_time() - begun:.1f} s of CPU, {peak():,.0f} MiB, digest {digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, nargs="+", default=[50_000, 100_000, 200_000, 500_000])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        write_corpus(Path(temporary) / "corpus", _PASSAGES)
        for queries in given.queries:
            folder = Path(temporary) / str(queries)
            write(folder, queries)
            for work in (stands, texts):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(f"{queries:,} queries, {work.__name__}: {pool.apply(measure, (work, folder))}", flush=True)


if __name__ == "__main__":
    main()
