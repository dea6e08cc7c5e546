"""A search pool with a name under many calls, undisturbed, and while its actors are killed and its index is switched.

    PYTHONPATH=tests .venv/bin/python benchmarks/pool.py --calls 10000

Four callers, each a process of its own, ask a pool of 2 shards x 2 replicas (10,000 vectors of 24, 1 to 8 queries a call, k 10), all calls
twice: without faults, then while a shard actor is killed (kill -9) five times and the pool switches five times between two indexes, which hold
other vectors of the same corpus. Every answer is compared with the answer of the index that it names, searched alone. Prints the calls that failed, those
that were mixed (not that of one index), p50 and p99 of a call's seconds, the longest, and what each swap took.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import ray
from embeddings import write_embeddings
from search_versions import DIMENSION, Asked, K, ask_at_once, kill_one, make_versions, start_callers
from turns import Ratio, Way, in_turns, ratios

from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.runtime.session import ensure_ray

CALLERS, FAULTS = 4, 5


def report(name: str, asked: Asked, seconds: float) -> None:
    p50, p99 = np.percentile(asked.seconds, [50, 99])
    print(
        f"{name:8} {len(asked.seconds):7,} {len(asked.failed):7} {asked.mixed:6} {len(asked.indexes):8} {1000 * p50:8.1f} {1000 * p99:8.1f}"
        f" {1000 * max(asked.seconds):11.0f} {len(asked.seconds) / seconds:8.0f}",
        flush=True,
    )
    for error in asked.failed[:3]:
        print(f"  {error[:300]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"calls": 10_000, "rows": 10_000, "shards": 2, "replicas": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    ensure_ray()
    swaps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        versions = make_versions(Path(folder), args.rows, 1_000, args.shards)
        with SearchPool.start(versions.indexes[0], shard_replicas=args.replicas, name="benchmark") as pool:
            callers = start_callers("benchmark", versions, CALLERS)

            def swap(number: int) -> None:
                begun = time.perf_counter()
                pool.swap(versions.indexes[(number + 1) % 2])
                swaps.append(time.perf_counter() - begun)

            faults = [fault for i in range(FAULTS) for fault in (partial(kill_one, pool, i), partial(swap, i))]
            print(
                f"{'':8} {'calls':>7} {'failed':>7} {'mixed':>6} {'indexes':>8} {'p50 ms':>8} {'p99 ms':>8} {'longest ms':>11} {'calls/s':>8}"
            )
            for name, happens in (("quiet", []), ("faults", faults)):
                begun = time.perf_counter()
                report(name, ask_at_once(callers, args.calls, happens), time.perf_counter() - begun)
    print(f"swaps took {', '.join(f'{seconds:.1f} s' for seconds in swaps)}")


class Empty:
    """An actor that does nothing: what a call of Ray takes."""

    def answer(self, queries: np.ndarray) -> np.ndarray:
        return queries


def small(work: Path) -> dict[str, Ratio]:
    """Single queries of a pool with a name, 10,000 vectors in 2 shards, against as many calls of an actor that does nothing."""
    ensure_ray()
    vectors = np.random.default_rng(1).standard_normal((10_000, DIMENSION)).astype(np.float32)
    write_embeddings(work / "embeddings", vectors)
    made = index(IndexSettings(kind="faiss", embeddings=str(work / "embeddings"), shards=2, output=str(work / "index")))
    actor = ray.remote(num_cpus=0)(Empty).remote()
    with SearchPool.start(made, name="benchmark") as pool:
        ways: dict[str, Way] = {
            "300 calls of a pool": lambda: [pool.search(vectors[at : at + 1], K) for at in range(300)],
            "of an empty actor": lambda: [ray.get(actor.answer.remote(vectors[at : at + 1])) for at in range(300)],
        }
        return ratios(in_turns(ways, 7), "of an empty actor")


if __name__ == "__main__":
    main()
