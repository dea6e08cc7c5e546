"""What the steps of a training took of the machines: next to the history, which has the same bytes at each run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from raydense.storage import Place
from raydense.training.history import HISTORY, USAGE, USAGE_EVENTS
from raydense.training.log import Log
from raydense.training.worker import Worker

CPU = torch.device("cpu")


def log_two_steps(rank: int, folder: str) -> None:
    """A worker of two; the second one holds 200 MB more."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    held = torch.ones(50_000_000 * rank)
    now = 100.0
    time.monotonic = lambda: now
    log = Log(Place.of(folder) / "shared", Worker(rank, 2, 2, CPU))
    log.open(0)
    for step, tokens in ((1, [10, 20]), (2, [20, 30])):
        log.add(step, {"lr": 0.1}, 1.0, {"loss": torch.tensor(float(rank + step))}, tokens[rank])
    now = 104.0
    log.flush({"mrr@10": 0.5})
    log.add(3, {"lr": 0.1}, 1.0, {"loss": torch.tensor(1.0)}, 5)
    now = 106.0
    log.flush()
    log.close()
    Path(folder, f"memory-{rank}").write_text(json.dumps([log.tokens, log.memory, len(held)]))
    dist.destroy_process_group()


def test_the_tokens_of_all_workers_and_the_memory_of_the_largest(tmp_path: Path) -> None:
    run_ranks(log_two_steps, (str(tmp_path),), 2)
    lines = [json.loads(line) for line in (tmp_path / "shared" / USAGE).read_text().splitlines()]
    assert [(line["step"], line["tokens_per_second"]) for line in lines] == [(2, 80 / 4), (3, 10 / 2)]
    (tokens, memory, _), (_, other, _) = (json.loads((tmp_path / f"memory-{rank}").read_text()) for rank in range(2))
    assert (tokens, memory) == (90, other)
    assert lines[-1]["memory"] == memory
    assert memory > 0.18, "GiB, of the worker that holds more"
    history = [json.loads(line) for line in (tmp_path / "shared" / HISTORY).read_text().splitlines()]
    assert history == [
        {"step": 1, "loss": 1.5, "lr": 0.1, "gradient_norm": 1.0},
        {"step": 2, "loss": 2.5, "lr": 0.1, "gradient_norm": 1.0, "mrr@10": 0.5},
        {"step": 3, "loss": 1.0, "lr": 0.1, "gradient_norm": 1.0},
    ]
    shown = {v.tag for e in EventFileLoader(str(tmp_path / "shared" / USAGE_EVENTS)).Load() for v in e.summary.value}
    assert shown == {"tokens_per_second", "memory"}
