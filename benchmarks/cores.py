"""The speed of all cores of this machine against one, for independent training steps: a ceiling for workers.

    python benchmarks/cores.py [--seconds 10] [--rounds 3]

One process per core, pinned to it, does forward and backward passes of a small BERT (2 layers, 128 wide, 64 texts of 64 tokens) with one thread:
first one process alone, then one on each core at the same time. Printed: steps per second of each, and the ratio; cores that share a
physical core, a cache or its power give less than their number.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from typing import Any


def work(core: int, seconds: float, start: Barrier, out: Any) -> None:
    """Steps per second of one process on one core, put into the queue `out`."""
    os.sched_setaffinity(0, [core])
    import torch
    from transformers import BertConfig, BertModel

    torch.set_num_threads(1)
    model = BertModel(BertConfig(vocab_size=8_192, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512))
    tokens = torch.randint(8_192, (64, 64))
    model(tokens).last_hidden_state.sum().backward()
    start.wait()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        model(tokens).last_hidden_state.sum().backward()
        steps += 1
    out.put(steps / (time.perf_counter() - begun))


def rate(cores: list[int], seconds: float) -> float:
    """Steps per second of a process on each of these cores, together."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(len(cores)), context.Queue()
    processes = [context.Process(target=work, args=(core, seconds, start, out)) for core in cores]
    for process in processes:
        process.start()
    rates = [out.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    for _ in range(asked.rounds):
        one, every = rate(cores[:1], asked.seconds), rate(cores, asked.seconds)
        print(f"one core: {one:.1f} steps/s; {len(cores)} cores: {every:.1f}, {every / one:.2f} of that", flush=True)


if __name__ == "__main__":
    main()
