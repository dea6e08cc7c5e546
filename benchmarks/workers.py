"""How far the losses of a run that continues with another number of workers are from those of a run without a stop.

    PYTHONPATH=tests python benchmarks/workers.py [--steps 20]

For each engine a tiny retriever takes half of its steps with some number of workers and the other half with another, and all of them
with the first number. Printed: the largest relative difference of the losses after the change; and, for comparison, that of 4 workers
and 1 from start to end, without a stop. Dropout is 0. Workers are plain processes of torch's own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.models.tiny import make_tiny_encoder
from raydense.storage import Place
from raydense.training.batches import Sampler
from raydense.training.engine import learning_rate, make_engine
from raydense.training.method import load_model, method_of
from raydense.training.precision import Precision
from raydense.training.settings import TrainSettings
from raydense.training.step import forward_and_backward

CPU = torch.device("cpu")
STEADY = {"lr": 1e-4, "normalize": True, "temperature": 0.2, "accumulation": 2}
WAYS: dict[str, tuple[dict[str, Any], Precision]] = {
    "DDP": ({"engine": {"name": "ddp"}}, "fp32"),
    **{f"ZeRO {zero}": ({"engine": {"name": "deepspeed", "zero": zero}}, "fp32") for zero in (0, 1, 2)},
    **{f"ZeRO {zero}, bf16": ({"engine": {"name": "deepspeed", "zero": zero}}, "bf16") for zero in (1, 2)},
}
# So many workers, and whose checkpoints they go on from: 0 is a run from start to end, which leaves one at its half.
TURNS = [(4, [0]), (1, [0]), (2, [0, 4, 1]), (1, [4, 2])]
CHANGES = [(4, 2), (4, 1), (2, 1), (1, 2)]


def run(rank: int, workers: int, given: dict[str, Any], half: int, folder: Path, precision: Precision, before: int) -> list[float]:
    """The losses of one run, the mean of all workers': from start to end, or from its half, that of so many workers `before`."""
    asked = TrainSettings(**{**given, "workers": workers})
    examples, texts = method_of(asked).read(asked, PassageStore(asked.corpus))
    kind = method_of(asked)
    model = load_model(asked, asked.model).train()
    method = kind(asked, model, texts, rank, workers)
    engine, sampler, losses = make_engine(model, asked, CPU, precision), Sampler(examples, asked), []
    if before:
        engine.load(Place.of(folder / str(before)), before)
    for step in range(half if before else 0, 2 * half):
        batches = [method.prepare(part) for part in sampler.step(step)]
        loss = torch.stack([forward_and_backward(engine, method, batch, 1, [step])["loss"] for batch in batches]).mean()
        engine.step(learning_rate(step, 2 * half, asked))
        dist.all_reduce(loss)
        losses.append(float(loss) / workers)
        if not before and step + 1 == half:
            (folder / str(workers)).mkdir(parents=True, exist_ok=True)
            engine.save(folder / str(workers))
    return losses


def worker(rank: int, turn: int, given: dict[str, dict[str, Any]], half: int, root: str) -> None:
    """One worker's part of a turn, of every way."""
    workers, starts = TURNS[turn]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root}/meet-{turn}", rank=rank, world_size=workers)
    for way, of_way in given.items():
        for before in starts:
            losses = run(rank, workers, of_way, half, Path(root, "kept", way), WAYS[way][1], before)
            if rank == 0:
                np.save(f"{root}/{way} {before}-{workers}.npy", losses)
    dist.barrier()
    dist.destroy_process_group()


def settings(data: TrainingData) -> dict[str, dict[str, Any]]:
    """What is given for each way, but for the workers; their model is made here."""
    store = PassageStore(data.root / "sample/corpus")
    make_tiny_encoder(store.slice(0, len(store), ["text"])["text"].to_pylist(), data.root / "tiny", 1)
    return {
        way: data.settings(data.root / "o", model=str(data.root / "tiny"), **{**STEADY, **changes}).model_dump(exclude_unset=True)
        for way, (changes, _) in WAYS.items()
    }


def show(way: str, root: Path, half: int) -> None:
    """A row of the table in docs/benchmarks/faults.md."""

    def losses(before: int, workers: int) -> np.ndarray:
        return np.load(root / f"{way} {before}-{workers}.npy")[0 if before else half :]

    pairs = [(losses(*change), losses(0, change[0])) for change in CHANGES] + [(losses(0, 1), losses(0, 4))]
    print(f"| {way} |", " | ".join(f"{np.abs(went_on / whole - 1).max():.1e}" for went_on, whole in pairs), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    half = parser.parse_args().steps // 2
    os.environ["DS_ACCELERATOR"] = "cpu"
    slow = ["deepspeed", "torch._inductor.compile_fx", "setuptools.dist", "raydense.training.loop", "raydense.training.shards"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(slow)
    with tempfile.TemporaryDirectory() as folder:
        given = settings(make_training_data(Path(folder)))
        for turn, (workers, _) in enumerate(TURNS):
            multiprocessing.start_processes(worker, (turn, given, half, folder), nprocs=workers, start_method="forkserver")
        print("| engine |", " | ".join(f"{a} to {b}" for a, b in CHANGES), "| 4 and 1, nobody stopped |")
        for way in given:
            show(way, Path(folder), half)


if __name__ == "__main__":
    main()
