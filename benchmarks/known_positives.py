"""The mask of known positives of a step by sorted search, against a dense comparison of all texts with all positives.

    OMP_NUM_THREADS=1 python benchmarks/known_positives.py [--queries 512] [--passages 20480] [--positives 4] [--rounds 5]

Random passages of 8.8 million, as many as MS MARCO's; each query's first positive is among the step's passages. Prints the best of the rounds,
in CPU milliseconds, and whether the masks are the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from raydense.training.known import known_positives
from raydense.training.part import Part
from raydense.training.ragged import Ragged

CORPUS = 8_841_823

Mask = NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("queries", 512), ("passages", 20_480), ("positives", 4), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    text_hash = rng.integers(2**64, size=CORPUS, dtype=np.uint64)
    rows = rng.integers(CORPUS, size=given.passages)
    positives = rng.integers(CORPUS, size=(given.queries, given.positives))
    positives[:, 0] = rows[: given.queries]
    known = Ragged(positives.ravel(), np.arange(0, positives.size + 1, given.positives))
    part = Part(np.arange(given.queries), positives[:, :1], positives[:, :0], known)
    ways = {"dense comparison": dense, "sorted search": known_positives}
    found = {name: best(lambda way=way: way(part, rows, text_hash), given.rounds) for name, way in ways.items()}  # type: ignore[misc]
    for name, (milliseconds, mask) in found.items():
        print(f"{name:16} {milliseconds:8.1f} ms, {mask.sum():,} of {mask.size:,}")
    print(f"the same: {np.array_equal(*(mask for _, mask in found.values()))}")


def dense(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> Mask:
    """Each known positive of a query compared with each passage."""
    same = text_hash[mine.known.values][:, None] == text_hash[rows]
    return np.logical_or.reduceat(same, mine.known.offsets[:-1], axis=0)


def best(run: Callable[[], Mask], rounds: int) -> tuple[float, Mask]:
    """The least CPU milliseconds of the rounds, and what the last one gave."""
    least = np.inf
    for _ in range(rounds):
        begun = time.process_time()
        mask = run()
        least = min(least, time.process_time() - begun)
    return 1000 * least, mask


if __name__ == "__main__":
    main()
