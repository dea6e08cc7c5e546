"""A training step by each engine, in turns in one process: `ddp`, DeepSpeed with ZeRO 1 to 3, and with what the optimizer holds offloaded.

    PYTHONPATH=tests python benchmarks/engines.py [--precisions bf16 fp16 fp32] [--queries 64] [--rounds 8] [--pieces 1] [--device cuda]
        [--other ENGINE.PY] [--only NAME ...] [--tiny]

The retriever of BERT-base's size with random weights, one negative a query, texts of random tokens: 128 a passage, 32 a query. Every engine has a model and an
optimizer of its own, all at once on one worker. --pieces cuts a step by gradient caching. --other is the file of another
`raydense/training/engine.py`, whose engines are measured next to these. Printed for each: milliseconds of the best and of the median step, its
ratio to that of `ddp`, and the most memory of tensors on the GPU beyond what the other engines hold. On a CPU (`--device cpu --tiny`) it shows that the script runs.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gpu_world
import torch
import torch.distributed as dist
from gpu_rows import Place
from torch import nn

from raydense.training.loop_settings import EngineSettings
from raydense.training.method import load_model
from raydense.training.step import forward_and_backward

GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16", "fp16"], default=["bf16", "fp16", "fp32"])
    for name, default in (("queries", 64), ("rounds", 8), ("pieces", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--other", type=Path)
    named = [name for name in engines("cuda", None) if name != "ddp"]
    parser.add_argument("--only", nargs="+", choices=named, metavar="NAME", help=f"beside ddp: {'; '.join(named)}")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    dist.init_process_group("nccl" if given.device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    print("| engine | best, ms | median, ms | best of ddp / its own | GiB |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(torch.device(given.device), given.tiny, Path(folder))
        rows = place.many(given.queries, 4)
        more = {"batch_size": rows, "negatives": 1, "query_length": 32, "micro_batch": rows // given.pieces}
        start = gpu_world.training(place, "train", "retriever", **more)
        for precision in given.precisions:
            report(precision, measured(place, start, precision, given))
            gc.collect()
    dist.destroy_process_group()


def engines(device: str, only: list[str] | None) -> dict[str, dict[str, Any]]:
    """The settings of each engine by its name."""
    found: dict[str, dict[str, Any]] = {"ddp": {"name": "ddp"}}
    found |= {f"ZeRO {zero}": {"name": "deepspeed", "zero": zero} for zero in (1, 2, 3)}
    if device == "cuda":
        found |= {f"{name}, offload": {**engine, "offload": True} for name, engine in found.items() if name != "ddp"}
    return {name: engine for name, engine in found.items() if name in ("ddp", *(only or found))}


def measured(place: Place, start: gpu_world.Training, precision: Any, given: argparse.Namespace) -> dict[str, tuple[list[float], float]]:
    """Seconds of every step of each engine, and the GiB that it takes; the first two steps, in which it allocates, are left out."""
    from raydense.training import engine as own

    modules = {"": own} | ({"other ": _module(given.other)} if given.other else {})
    model = load_model(start.settings, start.settings.model)
    steps: dict[str, Callable[[], None]] = {}
    found: dict[str, tuple[list[float], float]] = {}
    for name, engine in engines(given.device, given.only).items():
        for prefix, module in modules.items():
            steps[prefix + name], memory = _started(place, start, model, module, precision, engine, given.pieces)
            found[prefix + name] = [], memory
    for _ in range(given.rounds):
        for name, step in steps.items():
            place.wait()
            begun = time.perf_counter()
            step()
            place.wait()
            found[name][0].append(time.perf_counter() - begun)
    return found


def _started(
    place: Place, start: gpu_world.Training, model: nn.Module, module: Any, precision: Any, engine: dict[str, Any], pieces: int
) -> tuple[Callable[[], None], float]:
    """A function that makes a step of a new training, and the GiB that two of them took."""
    cuda = place.device.type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    settings = start.settings.model_copy(update={"engine": EngineSettings(**engine), "precision": precision})
    running = module.make_engine(copy.deepcopy(model), settings, place.device, precision, pieces)
    running.module.train()
    method, batches = start.method_for(running.module), itertools.cycle(start.batches)

    def step() -> None:
        forward_and_backward(running, method, next(batches), pieces, [0] * pieces)
        running.step(1e-5)

    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    place.wait()
    return step, (torch.cuda.max_memory_allocated() - before) / GIB if cuda else 0.0


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("other_engine", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["other_engine"] = module
    spec.loader.exec_module(module)
    return module


def report(precision: str, found: dict[str, tuple[list[float], float]]) -> None:
    best = min(found["ddp"][0])
    for name, (seconds, memory) in found.items():
        own = min(seconds)
        print(
            f"| {precision}, {name} | {1e3 * own:.1f} | {1e3 * statistics.median(seconds):.1f} | {best / own:.2f} | {memory:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
