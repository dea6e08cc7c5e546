"""What encoding a query takes on this CPU, by how many come at once and how many tokens a thread's batch has.

    python benchmarks/encode_queries.py --queries QUERIES --model MODEL [--at-once 1 8 32 640] [--tokens 64-256 16384-16384]

Prints milliseconds and CPU milliseconds a query. `--tokens` are the least and the most tokens of a batch: 64-256 is what raydense takes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from raydense.data.tables import read_table
from raydense.inference import query_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8, 16, 32, 640])
    parser.add_argument("--tokens", nargs="+", default=["64-256", "16384-16384"])
    given = parser.parse_args()
    texts = read_table(given.queries, "queries")["text"].to_pylist()
    texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[: max(given.at_once)]]
    encode = query_encoder.query_encoder(given.model)
    print(f"{'tokens':>12} {'at once':>8} {'ms a query':>11} {'CPU ms':>8}")
    for tokens in given.tokens:
        query_encoder._CPU_TOKENS = tuple(map(int, tokens.split("-")))  # type: ignore[assignment]
        for at_once in given.at_once:
            asked = texts[: len(texts) if at_once > 1 else 64]
            encode(asked[:at_once])
            begun, cpu = time.perf_counter(), time.process_time()
            for start in range(0, len(asked), at_once):
                encode(asked[start : start + at_once])
            took = [1_000 * (now - then) / len(asked) for now, then in ((time.perf_counter(), begun), (time.process_time(), cpu))]
            print(f"{tokens:>12} {at_once:8} {took[0]:11.2f} {took[1]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
