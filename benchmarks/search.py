"""Queries per second of a SearchPool against plain FAISS: the same vectors, queries, k and threads, taking turns in one run.

    .venv/bin/python benchmarks/search.py --rows 200000 --dimension 384 --queries 1000 --k 100
    .venv/bin/python benchmarks/search.py --rows 200000 --dimension 768 --queries 1024 --shards 1 --factories Flat SQfp16 SQ8
    .venv/bin/python benchmarks/search.py --rows 200000 --dimension 384 --queries 50 --batch 1 --shards 1

Prints the median of each over the rounds, the ratio to plain FAISS (the goal is 0.9; believe it on a quiet machine only, since the
threads of plain FAISS wait for each other), the CPU time of a query in all processes, to be read against plain FAISS with one thread,
whose threads do not burn time waiting, the share of places with the same id as plain
FAISS, and how far apart the exact scores are where the id is another: plain FAISS orders by scores that BLAS rounds as it batches, the
pool by one product per pair. All pools of a factory must return the same ids, or the benchmark fails. With `--batch` each call has so
many queries; `ms/call` is the median time of a call. Plain FAISS runs as it is installed: `OPENBLAS_CORETYPE`, if it is set, holds for both.
Ray's workers get the niceness of this process: they would run at 15 more, and on a busy machine wait for whatever else runs there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from turns import Ratio, in_turns, ratios

from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.runtime.session import ensure_ray, physical_cpus
from raydense.storage import Draft


def random_vectors(rows: int, dimension: int, seed: int) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((rows, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_embeddings(folder: Path, vectors: NDArray[np.float32]) -> None:
    draft = Draft.open(folder, "embeddings", {"random": list(vectors.shape)})
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    files = {
        "embeddings-00000.arrow": pa.table({"row": np.arange(len(vectors)), "embedding": column}),
        "passage_ids.arrow": pa.table({"passage_id": [f"p{i}" for i in range(len(vectors))]}),
    }
    for name, table in files.items():

        def write(path: Path, table: pa.Table = table) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        draft.commit(name, write, len(vectors))
    draft.finish(len(vectors), dimension=vectors.shape[1], dtype="float32", model="none", corpus="none")


def cpu_seconds(processes: list[int]) -> float:
    """The CPU time so far of this process and of others."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def called(
    search: Callable[[NDArray[np.float32]], NDArray[np.int64]], queries: NDArray[np.float32], batch: int
) -> Callable[[], NDArray[np.int64]]:
    """Searches all `queries`, `batch` of them in each call."""
    return lambda: np.concatenate([search(queries[at : at + batch]) for at in range(0, len(queries), batch)])


def timed(search: Callable[[], NDArray[np.int64]], processes: list[int]) -> tuple[float, float, NDArray[np.int64]]:
    """The seconds that a search takes, its CPU seconds, and what it finds."""
    start, cpu = time.perf_counter(), cpu_seconds(processes)
    rows = search()
    return time.perf_counter() - start, cpu_seconds(processes) - cpu, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 200_000, "dimension": 384, "queries": 1_000, "k": 100, "rounds": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 7])
    parser.add_argument("--factories", nargs="+", default=["Flat"])
    parser.add_argument("--batch", type=int, default=0, help="queries of a call  [all]")
    args = parser.parse_args()
    vectors, queries = random_vectors(args.rows, args.dimension, 1), random_vectors(args.queries, args.dimension, 2)
    os.environ.setdefault("RAY_worker_niceness", "0")
    threads = physical_cpus()
    faiss.omp_set_num_threads(threads)
    plain = faiss.IndexFlatIP(args.dimension)
    plain.add(vectors)
    ensure_ray()
    with tempfile.TemporaryDirectory() as folder:
        write_embeddings(Path(folder) / "embeddings", vectors)

        def on_one_thread() -> NDArray[np.int64]:
            faiss.omp_set_num_threads(1)
            rows = alone()
            faiss.omp_set_num_threads(threads)
            return rows

        batch = args.batch or len(queries)
        alone = called(lambda part: plain.search(part, args.k)[1], queries, batch)
        searches: dict[str, Callable[[], NDArray[np.int64]]] = {"plain faiss": alone}
        processes: dict[str, list[int]] = {}
        for factory, shards in ((factory, shards) for factory in args.factories for shards in args.shards):
            name = f"{factory}, {shards} shards"
            given = {"embeddings": f"{folder}/embeddings", "factory": factory, "shards": shards, "output": f"{folder}/{name}"}
            pool = SearchPool.start(index(IndexSettings.read({"kind": "faiss", **given})))
            searches[name] = called(lambda part, pool=pool: pool.search(part, args.k)[1], queries, batch)
            processes[name] = [pid for _, pid in ray.get([actor.describe.remote() for (actor,) in pool.actors])]
        report(searches | {"on 1 thread": on_one_thread}, processes, args.rounds, vectors, queries, threads, -(-len(queries) // batch))


def report(
    searches: dict[str, Callable[[], NDArray[np.int64]]],
    processes: dict[str, list[int]],
    rounds: int,
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    threads: int,
    calls: int,
) -> None:
    for search in searches.values():
        search()
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    cpu: dict[str, list[float]] = {name: [] for name in searches}
    rows: dict[str, NDArray[np.int64]] = {}
    for _ in range(rounds):
        for name, search in searches.items():
            passed, spent, rows[name] = timed(search, processes.get(name, []))
            seconds[name].append(passed)
            cpu[name].append(spent)
    plain, *pools = (name for name in searches if name != "on 1 thread")
    print(
        f"{'':17} {'queries/s':>10} {'ms/call':>8} {'ratio':>6} {'CPU ms/query':>13} {'same ids':>10} {'apart elsewhere':>16}   ({threads} threads, median of {rounds})"
    )
    for name in searches:
        rate, ratio = len(queries) / median(seconds[name]), median(seconds[plain]) / median(seconds[name])
        same = float((rows[name] == rows[plain]).mean())
        print(
            f"{name:17} {rate:10.0f} {1000 * median(seconds[name]) / calls:8.2f} {ratio:6.2f} {1000 * median(cpu[name]) / len(queries):13.2f} {same:10.3%} {apart(rows[name], rows[plain], vectors, queries):16.1e}"
        )
    first = {name.partition(",")[0]: rows[name] for name in reversed(pools)}
    if any((rows[name] != first[name.partition(",")[0]]).any() for name in pools):
        raise SystemExit("the pools do not agree")


def apart(here: NDArray[np.int64], there: NDArray[np.int64], vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> float:
    """The largest difference of the float64 scores of two ids at one place."""
    query, place = np.nonzero(here != there)
    differing = vectors[here[query, place]].astype(np.float64) - vectors[there[query, place]]
    return float(np.abs(np.einsum("nd,nd->n", differing, queries[query])).max(initial=0))


def small(work: Path) -> dict[str, Ratio]:
    """Pools of one shard, and plain FAISS with as many threads: a block of 1,024 queries, and single ones."""
    vectors, queries = random_vectors(50_000, 384, 1), random_vectors(1_024, 384, 2)
    os.environ.setdefault("RAY_worker_niceness", "0")
    faiss.omp_set_num_threads(physical_cpus())
    plain = faiss.IndexFlatIP(384)
    plain.add(vectors)
    ensure_ray()
    write_embeddings(work / "embeddings", vectors)
    ways: dict[str, Any] = {"plain FAISS": lambda part: plain.search(part, 100)}
    for factory in ("Flat", "SQfp16", "SQ8"):
        given = {"embeddings": f"{work}/embeddings", "factory": factory, "shards": 1, "output": f"{work}/{factory}"}
        pool = SearchPool.start(index(IndexSettings.read({"kind": "faiss", **given})))
        ways[f"pool {factory}"] = lambda part, pool=pool: pool.search(part, 100)
    blocks = in_turns({name: partial(search, queries) for name, search in ways.items()}, 5)
    found = {f"1,024 queries, {name}": each for name, each in ratios(blocks, "plain FAISS").items()}
    some = {name: called(lambda part, name=name: ways[name](part)[1], queries[:30], 1) for name in ("plain FAISS", "pool Flat")}
    return found | {f"one query, {name}": each for name, each in ratios(in_turns(some, 7), "plain FAISS").items()}


if __name__ == "__main__":
    main()
