"""What torch.compile is worth in a training step: forward and backward of an encoder, eager and compiled, fp32 and bf16 by autocast.

    python benchmarks/compiled.py [--model FOLDER] [--texts 32] [--tokens 128] [--rounds 3] [--buckets 32] [--ways dynamic buckets layers]
        [--precisions fp32 bf16] [--device cuda]

Batches of texts whose longest has up to --tokens tokens, each time another number. `eager` and `dynamic` (compiled once for any length) take them as
they are, `layers` too, of which each layer is compiled, all the same way, and what is around them is not; `buckets` pads them to a
multiple of --buckets tokens and is compiled for each such length. In turns, in one process. Printed: CPU seconds and
seconds of the best round, the largest difference of the loss to eager's, and the seconds that compiling took; it needs a C++ compiler.
Without --model the weights are random, of MiniLM's shape, with --device cuda of BERT-base's.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, BertConfig, BertModel

Batch = dict[str, Tensor]
Step = Callable[[Batch], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--ways", nargs="+", choices=["dynamic", "buckets", "layers"], default=["dynamic", "buckets"], help="beside eager")
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name, default in (("texts", 32), ("tokens", 128), ("rounds", 3), ("buckets", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device(given.device)
    batches = [batch(given.texts, given.tokens * (4 - number) // 4 - number, 1, device) for number in range(3)]
    padded = [batch(given.texts, one["input_ids"].shape[1], given.buckets, device) for one in batches]
    print("| way | CPU seconds of three steps | seconds | loss differs by | seconds of compiling |\n| --- | --- | --- | --- | --- |")
    for precision in given.precisions:
        model, mixed = encoder(given.model, device).to(device), precision == "bf16"
        ways: dict[str, tuple[Step, list[Batch]]] = {
            "eager": (step_of(model, model, mixed), batches),
            "dynamic": (step_of(torch.compile(model, dynamic=True), model, mixed), batches),
            "buckets": (step_of(torch.compile(model, dynamic=False), model, mixed), padded),
        }
        if "layers" in given.ways:
            layers = copy.deepcopy(model)
            for layer in layers.encoder.layer:
                layer.compile(dynamic=True)
            ways["layers"] = step_of(layers, layers, mixed), batches
        measure({way: ways[way] for way in ("eager", *given.ways)}, given.rounds, precision)


def encoder(folder: str | None, device: torch.device) -> Any:
    """The model, without dropout."""
    if folder:
        return AutoModel.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, add_pooling_layer=False).train()
    small: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    shape = small if device.type == "cpu" else {}
    config = BertConfig(**shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertModel(config, add_pooling_layer=False).train()


def batch(texts: int, longest: int, multiple: int, device: torch.device) -> Batch:
    """Texts of half of `longest` tokens and more, padded to a multiple; the same tokens for any."""
    random = torch.Generator().manual_seed(longest)
    ids = torch.randint(1000, 30_000, (texts, longest), generator=random)
    lengths = torch.linspace(longest / 2, longest, texts).long()
    real = torch.arange(longest) < lengths[:, None]
    more = (0, -longest % multiple)
    made = {"input_ids": ids * real, "attention_mask": real.long()}
    return {key: torch.nn.functional.pad(value, more).to(device) for key, value in made.items()}


def step_of(run: Any, model: Any, mixed: bool) -> Step:
    """Forward and backward of a loss of the mean states."""

    def step(batch: Batch) -> float:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=mixed):
            states = run(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(2)
        vectors = torch.nn.functional.normalize((states.float() * mask).sum(1) / mask.sum(1), dim=1)
        loss = torch.nn.functional.cross_entropy(
            20 * vectors[::2] @ vectors[1::2].T, torch.arange(len(vectors) // 2, device=vectors.device)
        )
        loss.backward()
        model.zero_grad()
        return loss.item()

    return step


def measure(ways: dict[str, tuple[Step, list[Batch]]], rounds: int, precision: str) -> None:
    """Run all in turns; the first round, in which they are compiled, apart."""
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    losses: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for way, (step, batches) in ways.items():
            begun = time.process_time(), time.perf_counter()
            losses[way] = [step(one) for one in batches]
            spent[way].append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
    for way, taken in spent.items():
        cpu, wall = (min(each[kind] for each in taken[1:]) for kind in (0, 1))
        apart = max(abs(a - b) for a, b in zip(losses[way], losses["eager"], strict=True))
        print(f"| {precision}, {way} | {cpu:.2f} | {wall:.2f} | {apart:.0e} | {max(0.0, taken[0][1] - wall):.0f} |", flush=True)


if __name__ == "__main__":
    main()
