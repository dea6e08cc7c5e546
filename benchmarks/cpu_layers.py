"""A training step on a CPU with PyTorch's attention and dropout, and with ours: CPU seconds and memory.

    OMP_NUM_THREADS=1 PYTHONPATH=tests python benchmarks/cpu_layers.py --corpus CORPUS --queries QUERIES --examples EXAMPLES --model FOLDER
        [--precision bf16 fp32] [--batch-size 32] [--length 128] [--steps 6]

A retriever with in-batch negatives and one hard negative, the dropout of the model's config, a process for each way under Ray's jemalloc. The first step of a
process is not counted. Losses are not the same, since the two draw dropout in different ways.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from unittest.mock import patch

from watched import held_at_most

WAYS = ("PyTorch's", "ours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "queries", "examples", "model"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("batch-size", 32), ("length", 128), ("steps", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(steps(given)))
        return
    print("| precision | way | CPU seconds of each step | best | GiB |\n| --- | --- | --- | --- | --- |")
    for precision in given.precision:
        for way in WAYS:
            seconds, gib = started(precision, way)
            print(f"| {precision} | {way} | {', '.join(f'{s:.2f}' for s in seconds)} | {min(seconds):.2f} | {gib:.2f} |", flush=True)


def started(precision: str, way: str) -> tuple[list[float], float]:
    """What a process of its own measured."""
    from raydense.runtime.allocator import cpu_worker_env

    command = [sys.executable, *sys.argv, "--precision", precision, "--way", way]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | cpu_worker_env()).stdout
    seconds, gib = json.loads(printed.splitlines()[-1])
    return seconds, gib


def steps(given: argparse.Namespace) -> tuple[list[float], float]:
    """CPU seconds of each step after the first, and the most memory of the process in GiB."""
    import step_ours
    from step_job import LR, Job

    from raydense.training.step import forward_and_backward

    job = Job(
        method="retriever", corpus=given.corpus, queries=given.queries, examples=given.examples, model=given.model, reranker="", texts="",
        sampled=[], batch_size=given.batch_size, negatives=1, length=given.length, precision=given.precision[0], engine="deepspeed",
        micro_batch=0, threads=1, device="cpu",
    )  # fmt: skip
    with nullcontext() if given.way == "ours" else patch("raydense.training.engine.use_cpu_layers", lambda model: None):
        method, sampler, engine, pieces = step_ours.start(job)
    spent = []
    for step in range(given.steps + 1):
        begun = time.process_time()
        (part,) = sampler.step(step)
        forward_and_backward(engine, method, method.prepare(part), pieces, [0] * pieces)
        engine.step(LR)
        spent.append(time.process_time() - begun)
    return spent[1:], held_at_most() / 2**30


if __name__ == "__main__":
    main()
