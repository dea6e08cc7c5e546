"""What mining negatives next to a training costs its steps, in mode async, on the CPU.

    python benchmarks/refresh.py --corpus CORPUS --queries QUERIES --examples EXAMPLES [--steps 240] [--every 60]

Trains a tiny retriever four times, on the first two cores that it may use: (1) with negatives that stay, held to one core; (2) the same, while another process encodes passages
on another core, without Ray: what any use of that core costs; (3) async, on both cores, of which the training leaves one to what finds
the negatives; (4) sync, on both cores. Prints queries per second of the steps alone, and the whole of each in seconds.

With `--generations N` it trains nothing: for `retriever`, `pair` and `joint` it makes N generations by a search pool that lives through them, and
N that each start a pool of their own, in turns. Prints the seconds of each, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "queries", "examples"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--generations", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(json.loads(options.one))
        return
    with tempfile.TemporaryDirectory(prefix="raydense-refresh-") as work:
        generations(options, Path(work)) if options.generations else compare(options, Path(work))


def generations(options: argparse.Namespace, work: Path) -> None:
    """Time the making of generations, of weights that differ a little; the first of each pool is not counted."""
    import numpy as np

    from raydense.data.store import PassageStore
    from raydense.models.tiny import make_tiny_encoder
    from raydense.runtime.session import ensure_ray

    ensure_ray()
    store, start = PassageStore(options.corpus), work / "tiny"
    make_tiny_encoder(store.passages(np.arange(min(2_000, len(store)))), start, 0)
    for objective in ("retriever", "pair", "joint"):
        seconds = in_turns(options, work / objective, objective, str(start))
        medians = {name: float(np.median(of)) for name, of in seconds.items()}
        shown = "; ".join(f"{name} {' '.join(f'{one:.1f}' for one in of)}" for name, of in seconds.items())
        print(f"{objective}: {shown}; medians, one living pool / a pool each: {medians['living'] / medians['each']:.2f}", flush=True)


def in_turns(options: argparse.Namespace, work: Path, objective: str, start: str) -> dict[str, list[float]]:
    """The seconds of the generations of each kind."""
    import torch

    from raydense.refresh.generation import make_generation
    from raydense.refresh.training_pool import TrainingPool
    from raydense.storage import Place
    from raydense.training.generations import Generations
    from raydense.training.method import load_model
    from raydense.training.settings import TrainSettings

    class Each(TrainingPool):
        """Ends after each generation."""

        def rest(self) -> None:
            self.close()

    given: dict[str, Any] = {name: os.path.abspath(getattr(options, name)) for name in ("corpus", "queries", "examples")}
    given |= {"objective": objective, "model": start, "refresh": {"every": 10, "depth": 50}, "normalize": True, "negatives": 1}
    given |= {"reranker": start} if objective == "joint" else {}
    seconds: dict[str, list[float]] = {"living": [], "each": []}
    with TrainingPool() as living, Each() as each:
        kinds, outputs = {"living": living, "each": each}, {name: Place.of(work / name) for name in seconds}
        settings = {name: TrainSettings.read({**given, "output": str(place)}) for name, place in outputs.items()}
        weights = load_model(settings["living"], start).state_dict()
        for number in range(1, options.generations + 2):
            for name in sorted(seconds, reverse=bool(number % 2)):
                made = Generations(outputs[name], 10 * (options.generations + 3), 10)
                made.hand_over(10 * number, weights)
                begun = time.perf_counter()
                make_generation(kinds[name], settings[name], start, made, number)
                seconds[name].append(time.perf_counter() - begun)
            weights = {name: one + 0.01 * torch.randn(one.shape).to(one) for name, one in weights.items()}
    return {name: of[1:] for name, of in seconds.items()}


def compare(options: argparse.Namespace, work: Path) -> None:
    """Run the four, and print."""
    static: dict[str, Any] = {
        "objective": "retriever",
        "model": "tiny",
        "negatives": 1,
        "max_steps": options.steps,
        "normalize": True,
        "temperature": 0.05,
        "lr": 1e-3,
        "query_length": 32,
        "passage_length": 64,
        "engine": {"name": "ddp"},
        **{name: os.path.abspath(getattr(options, name)) for name in ("corpus", "queries", "examples")},
    }
    fresh = {mode: {**static, "refresh": {"every": options.every, "depth": 50, "mode": mode}} for mode in ("async", "sync")}
    one_core, both_cores = two_cores()[:1], two_cores()
    alone = measured("static, one core", train({**static, "output": str(work / "static")}, one_core))
    with busy(work / "static", options.corpus, both_cores[1]):
        shared = measured("static, one core, the other one encoding", train({**static, "output": str(work / "shared")}, one_core))
    both = measured("async, two cores", train({**fresh["async"], "output": str(work / "async")}, both_cores))
    measured("sync, two cores", train({**fresh["sync"], "output": str(work / "sync")}, both_cores))
    print(f"async: {both / alone:.2f} of the rate alone, {both / shared:.2f} of the rate next to an encoding")


def two_cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("needs two cores")
    return cores


def train(settings: dict[str, Any], cores: list[int]) -> dict[str, Any]:
    """One training in a process of its own, held to `cores`; its summary, with the seconds of all."""
    begun = time.perf_counter()
    command = [sys.executable, __file__, *(f"--{name}=-" for name in ("corpus", "queries", "examples")), "--one"]
    subprocess.run([*command, json.dumps({"settings": settings, "cores": cores})], check=True)
    from raydense.storage import Artifact

    return {**Artifact.open(settings["output"]).summary, "whole": time.perf_counter() - begun}


def one(job: dict[str, Any]) -> None:
    os.sched_setaffinity(0, job["cores"])  # before Ray starts, whose processes inherit it
    from raydense.refresh.train import train as stage
    from raydense.training.settings import TrainSettings

    stage(TrainSettings.read(job["settings"]))


def measured(name: str, summary: dict[str, Any]) -> float:
    rate = float(summary["queries_per_second"])
    waited = f", waited {summary['waited']:.1f} s" if "waited" in summary else ""
    print(f"{name}: {rate:.1f} queries/s{waited}; {summary['whole']:.1f} s in all, starting included", flush=True)
    return rate


@contextmanager
def busy(model: Path, corpus: str, core: int) -> Iterator[None]:
    """A process that encodes on this core, from the beginning of the block to its end; it fails if that process ended before."""
    process = subprocess.Popen([sys.executable, "-c", _ENCODE, str(model), corpus, str(core)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        begins = process.stdout.readline()  # it has loaded what it needs; nothing if it ended
        if begins:
            yield
        if not begins or process.poll() is not None:
            raise SystemExit("the process that was to encode on the other core has ended")
    finally:
        process.kill()
        process.wait()


_ENCODE = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[3])])
import numpy as np, torch
from raydense.data.store import PassageStore
from raydense.models.dual_encoder import DualEncoder
torch.set_num_threads(1)
model, store = DualEncoder.load(sys.argv[1]).eval(), PassageStore(sys.argv[2])
rows = np.arange(min(1000, len(store)))
tokens = model.tokenize_passages(store.passages(rows))
print("begins", flush=True)
while True:
    for at in range(0, len(rows), 50):
        with torch.inference_mode():
            model.encode_passages(tokens.select(rows[at : at + 50]).pad(model.tokenizer.pad_id, "cpu"))
"""


if __name__ == "__main__":
    main()
