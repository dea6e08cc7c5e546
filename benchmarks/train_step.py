"""What a training step of ours costs over a bare PyTorch loop, on the same batches, one worker, in one process run.

    PYTHONPATH=tests python benchmarks/train_step.py [--model tiny|six] [--steps 40] [--batch-size 32]

Each engine makes a step as the loop does (method, engine) on batches prepared beforehand, and so does the bare loop, in turns:
bare, ddp, deepspeed, bare, ... so that a busy machine slows all alike. Printed: median seconds a step, and the ratio to bare.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from training_data import make_training_data
from transformers import BertConfig, BertModel
from turns import Ratio, ratios

from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_encoder
from raydense.training.batches import Sampler
from raydense.training.engine import learning_rate, make_engine, make_optimizer
from raydense.training.examples import read_examples
from raydense.training.method import Batch
from raydense.training.methods.retriever import Retriever
from raydense.training.settings import TrainSettings
from raydense.training.step import forward_and_backward
from raydense.training.texts import Texts

Step = Callable[[int, Batch], float]
Clock = Callable[[], float]


def bare_step(model: DualEncoder, settings: TrainSettings, steps: int, device: torch.device) -> Step:
    """What a user would write by hand: the loss from PyTorch's own cross entropy, and PyTorch's AdamW."""
    model.to(device)
    optimizer = make_optimizer(model, settings)

    def step(number: int, batch: Batch) -> float:
        batch = {name: on_device(value, device) for name, value in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            queries, passages = model.encode_queries(batch["queries"]), model.encode_passages(batch["passages"])
        scores = (queries.float() @ passages.float().T).masked_fill(batch["known"] & ~own_column(batch), float("-inf"))
        loss = torch.nn.functional.cross_entropy(scores, batch["positive"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, steps, settings)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def on_device(value: Any, device: torch.device) -> Any:
    """A tensor, or a dict of them, on `device`."""
    return value.to(device) if isinstance(value, torch.Tensor) else {k: v.to(device) for k, v in value.items()}


def own_column(batch: Batch) -> torch.Tensor:
    """True at each query's positive."""
    return torch.nn.functional.one_hot(batch["positive"], batch["known"].shape[1]).bool()


def engine_step(model: DualEncoder, settings: TrainSettings, steps: int, device: torch.device, method: Retriever) -> Step:
    """A step as `Loop` makes it."""
    engine = make_engine(model, settings, device, "bf16" if device.type == "cuda" else "fp32")
    engine.module.train()

    def step(number: int, batch: Batch) -> float:
        measured = forward_and_backward(engine, method, batch, 1, [number])
        engine.step(learning_rate(number, steps, settings))
        return measured["loss"].item()

    return step


def model_folder(name: str, root: Path, texts: list[str]) -> Path:
    """`tiny`, or `six`: six layers of width 384, random weights, the tokenizer of tiny."""
    folder = root / name
    make_tiny_encoder(texts, folder, 1)
    if name == "six":
        vocabulary = DualEncoder.load(folder).encoder.config.vocab_size
        shape: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        torch.manual_seed(1)
        BertModel(BertConfig(vocab_size=vocabulary, **shape), add_pooling_layer=False).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["tiny", "six"], default="tiny")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = on_one_rank(Path(folder), asked)
    bare = statistics.median(seconds["bare"][2:])
    for way, taken in seconds.items():
        middle = statistics.median(taken[2:])
        print(f"{asked.model} batch {asked.batch_size}: {way:10} {1000 * middle:8.2f} ms a step, {middle / bare:.3f} of bare")


def on_one_rank(root: Path, asked: argparse.Namespace, clock: Clock = time.perf_counter) -> dict[str, list[float]]:
    """The seconds by `clock` of each step of each way, the first two included, in a process group of this process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = dist.FileStore(f"{root}/group", 1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
    seconds = measure(root, asked, device, clock)
    dist.destroy_process_group()
    return seconds


def measure(root: Path, asked: argparse.Namespace, device: torch.device, clock: Clock) -> dict[str, list[float]]:
    data = make_training_data(root)
    settings = data.settings(root / "o", batch_size=asked.batch_size, dropout=0.1, lr=1e-4)
    queries, store = read_table(settings.queries, "queries"), PassageStore(settings.corpus)
    texts = Texts(queries, store)
    folder = model_folder(asked.model, root, texts.passages(torch.arange(len(store)).numpy()))
    sampler = Sampler(read_examples(settings.examples, queries, store, 2), settings)
    method = Retriever(settings, DualEncoder.load(folder), texts, 0, 1)
    batches = [method.prepare(sampler.step(s)[0]) for s in range(asked.steps)]

    def fresh() -> DualEncoder:
        return DualEncoder.load(folder, dropout=0.1).train()

    ways: dict[str, Step] = {"bare": bare_step(fresh(), settings, asked.steps, device)}
    for engine in ("ddp", "deepspeed"):
        ways[engine] = engine_step(fresh(), settings.replaced({"engine.name": engine}), asked.steps, device, method)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number, batch in enumerate(batches):
        for way, step in ways.items():
            torch.manual_seed(number)
            start = clock()
            step(number, batch)
            seconds[way].append(clock() - start)
    return seconds


def small(work: Path) -> dict[str, Ratio]:
    """The engines against the bare loop, 6 layers of 384, batch 4, in CPU seconds of one thread."""
    torch.set_num_threads(1)
    seconds = on_one_rank(work, argparse.Namespace(model="six", steps=8, batch_size=4), time.process_time)
    return ratios({way: taken[2:] for way, taken in seconds.items()}, "bare")


if __name__ == "__main__":
    main()
