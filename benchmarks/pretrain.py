"""Pre-training against a bare loop of transformers: the same encoder, passages, masks, optimiser and cores, in one run.

    python benchmarks/pretrain.py --corpus CORPUS [--model FOLDER] [--generated GENERATED] [--steps 100] [--batch-size 64] [--length 64]
        [--precision fp32]

CORPUS is a corpus artifact, FOLDER an encoder (by default a tiny one, made of it), GENERATED queries for the passages. Prints passages and tokens (padding left out)
per second of masked language modelling: the bare loop with all cores; one worker with all cores; one worker held to one core, and
two workers of one core each. And of one worker with all cores for coCondenser and CoT-MAE, where there are queries. What starting costs is left out of all; tokenising is not. The bare
loop computes in fp32, ours in `--precision`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling

from raydense.data.store import PassageStore
from raydense.models.tiny import make_tiny_encoder
from raydense.runtime.session import physical_cpus
from raydense.training.engine import learning_rate, make_optimizer
from raydense.training.pretrain import pretrain
from raydense.training.settings import PretrainSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--model")
    parser.add_argument("--generated")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--precision", choices=["fp32", "bf16", "auto"], default="fp32")
    parser.add_argument("--one-core", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raydense-pretrain-") as work:
        if options.one_core:  # before Ray starts, whose processes inherit it
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
            print(ours(options, Path(work)))
            return
        store = PassageStore(options.corpus)
        if options.model is None:
            options.model = str(Path(work) / "tiny")
            make_tiny_encoder(store.passages(np.arange(len(store))), options.model, 1)
        compare(options, Path(work), store)


def compare(options: argparse.Namespace, work: Path, store: PassageStore) -> None:
    """Time all of them, in turn, and print."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    some = tokenizer(store.passages(np.arange(0, len(store), max(1, len(store) // 1_000))), truncation=True, max_length=options.length)
    each = float(np.mean([len(ids) for ids in some["input_ids"]]))
    theirs = bare(options, store)
    print(f"transformers, {physical_cpus()} threads: {theirs:.1f} passages/s, {theirs * each:,.0f} tokens/s", flush=True)
    whole = ours(options, work)
    print(f"one worker, all cores: {whole:.1f} passages/s, {whole * each:,.0f} tokens/s, {whole / theirs:.2f} of that", flush=True)
    command = [
        sys.executable,
        __file__,
        "--one-core",
        *(f"--{k.replace('_', '-')}={v}" for k, v in vars(options).items() if v and k != "one_core"),
    ]
    one = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])
    two = ours(options, work, workers=2)
    print(f"one worker, one core: {one:.1f} passages/s; two workers of one core each: {two:.1f}, {two / one:.2f} of that", flush=True)
    for method in ("cocondenser", "cotmae") if options.generated else ():
        rate = ours(options, work, method=method, context="query", generated=options.generated)
        print(f"one worker, all cores, {method} with queries: {rate:.1f} passages/s", flush=True)


def settings_of(options: argparse.Namespace, work: Path, **changes: Any) -> PretrainSettings:
    values = {
        "method": "mlm",
        "model": options.model,
        "corpus": options.corpus,
        "output": str(work / "-".join(["out", *map(str, changes.values())]).replace("/", "_")),
        "max_steps": options.steps,
        "epochs": 1_000,
        "batch_size": options.batch_size,
        "passage_length": options.length,
        "engine": {"name": "ddp"},
        "precision": options.precision,
        "checkpoint_every": 10**9,
    }
    return PretrainSettings.read(values | changes)


def ours(options: argparse.Namespace, work: Path, **changes: Any) -> float:
    """Passages per second of the stage's loop, from its summary."""
    return float(pretrain(settings_of(options, work, **changes)).summary["queries_per_second"])


def bare(options: argparse.Namespace, store: PassageStore) -> float:
    """Passages per second of what one would write by hand: transformers' model, loss and collator, PyTorch's optimiser and loader."""
    torch.set_num_threads(physical_cpus())
    settings = settings_of(options, Path("unused"))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForMaskedLM.from_pretrained(options.model).train()
    optimizer = make_optimizer(model, settings)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def batches() -> Iterator[Any]:
        rows = np.random.default_rng(1).permutation(len(store))
        for step in range(options.steps):
            texts = store.passages(rows.take(np.arange(step * options.batch_size, (step + 1) * options.batch_size), mode="wrap"))
            encoded = tokenizer(texts, truncation=True, max_length=options.length)
            yield collate([{"input_ids": ids} for ids in encoded["input_ids"]])

    begun = time.perf_counter()
    for number, batch in enumerate(batches()):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, options.steps, settings)
        optimizer.step()
        optimizer.zero_grad()
    return options.steps * options.batch_size / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
