"""Searching inverted lists list by list, as raydense does for many queries, against FAISS, which takes one query after another.

    python benchmarks/inverted_lists.py [--rows 1000000] [--lists 1024] [--queries 2048] [--nprobes 8 32 128] [--factory SQfp16]

The vectors lie around 2,000 random centres, and the queries near some of them. Both search the same index with the same threads, kernels and nprobe, turn
by turn. Prints seconds, CPU seconds, their ratio, and the share of the hits of FAISS that the other way finds too.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from turns import Ratio, in_turns, ratios

from raydense.retrieval.faiss_library import faiss
from raydense.retrieval.faiss_speed import prefer_blas
from raydense.retrieval.list_scan import ListScan
from raydense.runtime.session import physical_cpus

CENTRES, DIMENSION, K, TRAINED = 2_000, 256, 100, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 1_000_000, "lists": 1_024, "queries": 2_048, "rounds": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--nprobes", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--factory", default="SQfp16")
    given = parser.parse_args()
    index, queries = made(given.rows, given.lists, given.queries, given.factory)
    print("| nprobe | FAISS, s | CPU | list by list, s | CPU | CPU of FAISS / ours | same hits |\n" + "|" + " --- |" * 7)
    for nprobe in given.nprobes:
        index.nprobe = nprobe
        seconds: dict[str, list[tuple[float, float]]] = {}
        hits: dict[str, Any] = {}
        for _ in range(given.rounds):
            for name, search in ways(index, queries).items():
                begun, cpu = time.perf_counter(), time.process_time()
                hits[name] = search()[1]
                seconds.setdefault(name, []).append((time.perf_counter() - begun, time.process_time() - cpu))
        (wall, cpu), (other_wall, other_cpu) = (map(min, zip(*seconds[name], strict=True)) for name in ("FAISS", "list by list"))
        same = np.mean([np.isin(ours, theirs).mean() for ours, theirs in zip(hits["list by list"], hits["FAISS"], strict=True)])
        print(
            f"| {nprobe} | {wall:.2f} | {cpu:.2f} | {other_wall:.2f} | {other_cpu:.2f} | {cpu / other_cpu:.2f} | {same:.3%} |", flush=True
        )


def made(rows: int, lists: int, asked: int, factory: str) -> tuple[Any, np.ndarray]:
    """An index of `rows` vectors, and `asked` queries."""
    random = np.random.default_rng(1)
    centres = random.standard_normal((CENTRES, DIMENSION), dtype=np.float32)
    vectors = random.standard_normal((rows, DIMENSION), dtype=np.float32)
    vectors += centres[random.integers(CENTRES, size=rows)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[random.choice(rows, asked)] + 0.03 * random.standard_normal((asked, DIMENSION), dtype=np.float32)
    faiss.omp_set_num_threads(physical_cpus())
    prefer_blas(DIMENSION)
    index: Any = faiss.index_factory(DIMENSION, f"IVF{lists},{factory}", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 4
    index.train(vectors[: TRAINED * lists])
    index.add(vectors)
    return index, queries.astype(np.float32)


def ways(index: Any, queries: np.ndarray) -> dict[str, Any]:
    def by_faiss() -> Any:
        faiss.omp_set_num_threads(physical_cpus())
        return index.search(queries, K)

    return {"FAISS": by_faiss, "list by list": partial(ListScan(index, physical_cpus()).search, queries, K)}


def small(work: Path) -> dict[str, Ratio]:
    """2,048 queries of 200,000 vectors in 256 lists, of which 16 are looked into."""
    index, queries = made(200_000, 256, 2_048, "SQfp16")
    index.nprobe = 16
    return ratios(in_turns(ways(index, queries), 3), "FAISS")


if __name__ == "__main__":
    main()
