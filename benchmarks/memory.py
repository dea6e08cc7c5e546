"""The estimated memory of a training worker against the most that it held: each setting in a fresh process, without Ray's own memory.

    PYTHONPATH=tests python benchmarks/memory.py [--only NAME ...] [--ray]
    PYTHONPATH=tests python benchmarks/memory.py --device cuda [--auto GIB]

With `--device cuda`, on one GPU: its most memory in use by tensors, also of what only GPUs do (weights in half precision, offload), and the
most resident memory of the process, with it what is offloaded. With `--auto` too, what `micro_batch: auto` finds where that much of the GPU
may be used, the most that two steps with it take, and whether they go with twice as many texts at once.
On a CPU a process makes two steps (the first has no optimiser state yet) of full-length texts on one CPU worker, as the loop does: batches,
method, engine, pieces; with `--ray` the stage itself makes them in a worker of Ray Train. Printed: the estimate, its parts, the peak resident memory (VmHWM), and estimate / peak.
`base` is an encoder of BERT-base size (12 layers of 768, vocabulary 30,522), `small` one of 6 layers of 384, both of random weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kept import made_whole

SHORT = {"query_length": 16, "passage_length": 64, "pair_length": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {"model": "tiny", "batch_size": 32, "negatives": 1},
    "tiny, large batch in pieces": {
        "model": "tiny",
        "batch_size": 1024,
        "negatives": 1,
        "micro_batch": 32,
        "query_length": 16,
        "passage_length": 64,
    },
    "small": {"model": "small", "batch_size": 16, "negatives": 3},
    "small, no dropout": {"model": "small", "batch_size": 16, "negatives": 3, "dropout": 0.0},
    "small, bf16": {"model": "small", "batch_size": 16, "negatives": 3, "precision": "bf16"},
    "small, checkpointed": {"model": "small", "batch_size": 16, "negatives": 3, "activation_checkpointing": True},
    "small, two encoders": {"model": "small", "batch_size": 16, "negatives": 3, "shared": False},
    "small, lamb": {"model": "small", "batch_size": 16, "negatives": 3, "optimizer": "lamb", "micro_batch": 4},
    "small, ZeRO 0": {"model": "small", "batch_size": 16, "negatives": 3, "engine": {"name": "deepspeed", "zero": 0}},
    "small, ZeRO 1": {"model": "small", "batch_size": 16, "negatives": 3, "engine": {"name": "deepspeed", "zero": 1}},
    "small, ZeRO 1 in pieces": {
        "model": "small",
        "batch_size": 16,
        "negatives": 3,
        "engine": {"name": "deepspeed", "zero": 1},
        "micro_batch": 8,
    },
    "small, ZeRO 1, bf16": {
        "model": "small",
        "batch_size": 16,
        "negatives": 3,
        "engine": {"name": "deepspeed", "zero": 1},
        "precision": "bf16",
    },
    "small, ZeRO 2, bf16": {
        "model": "small",
        "batch_size": 16,
        "negatives": 3,
        "engine": {"name": "deepspeed", "zero": 2},
        "precision": "bf16",
    },
    "small, ZeRO 3, bf16": {
        "model": "small",
        "batch_size": 16,
        "negatives": 3,
        "engine": {"name": "deepspeed", "zero": 3},
        "precision": "bf16",
    },
    "small, static teacher": {"model": "small", "objective": "joint", "teacher": "static", "batch_size": 4, "negatives": 15},
    "base, 8 texts": {"model": "base", "batch_size": 4, "negatives": 1, **SHORT},
    "base, ZeRO 1": {"model": "base", "batch_size": 4, "negatives": 1, "engine": {"name": "deepspeed", "zero": 1}, **SHORT},
    "base, re-ranker 1:15 in pieces": {
        "model": "base",
        "objective": "reranker",
        "batch_size": 1,
        "negatives": 15,
        "micro_batch": 4,
        **SHORT,
    },
    "small, mlm": {"model": "small", "method": "mlm", "batch_size": 16},
    "small, coCondenser in pieces": {"model": "small", "method": "cocondenser", "context": "query", "batch_size": 64, "micro_batch": 16},
    "base, CoT-MAE": {"model": "base", "method": "cotmae", "context": "query", "batch_size": 4, "engine": {"name": "deepspeed"}},
    "base, joint 1:127 in pieces": {"model": "base", "objective": "joint", "batch_size": 1, "negatives": 127, "micro_batch": 16, **SHORT},
}
_LARGE = {"model": "base", "batch_size": 64, "negatives": 1, **SHORT}
ON_GPUS: dict[str, dict[str, Any]] = {
    "base, fp32": {**_LARGE, "precision": "fp32"},
    "base, bf16": {**_LARGE, "precision": "bf16"},
    "base, fp16": {**_LARGE, "precision": "fp16"},
    "base, bf16, in pieces": {**_LARGE, "precision": "bf16", "micro_batch": 16},
    "base, bf16, checkpointed": {**_LARGE, "precision": "bf16", "activation_checkpointing": True},
    "base, joint 1:31, bf16": {"model": "base", "objective": "joint", "batch_size": 4, "negatives": 31, "precision": "bf16"},
    "base, CoT-MAE, bf16": {"model": "base", "method": "cotmae", "context": "query", "batch_size": 64, "precision": "bf16"},
} | {
    f"base, ZeRO {zero}, {precision}{', offload' * offload}": {
        "model": "base", "batch_size": 4, "negatives": 1, "precision": precision, **SHORT,
        "engine": {"name": "deepspeed", "zero": zero, "offload": offload},
    }
    for zero in (1, 2, 3)
    for precision in ("fp32", "bf16", "fp16")
    for offload in (False, True)
}  # fmt: skip
_WIDTHS = {
    "base": {},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}


def settings_of(name: str, root: Path) -> Any:
    from raydense.training.settings import PretrainSettings, TrainSettings

    values: dict[str, Any] = {
        "engine": {"name": "ddp"},
        "output": str(root / "o"),
        "corpus": str(root / "corpus"),
        **(SETTINGS | ON_GPUS)[name],
    }
    if "method" in values:
        generated = {"generated": str(root / "generated")} if "context" in values else {}
        return PretrainSettings(**{**values, **generated, "model": str(root / values["model"])})
    values.setdefault("objective", "retriever")
    unused = {"retriever": ["pair_length"], "reranker": ["query_length", "passage_length"], "joint": []}
    values = {key: value for key, value in values.items() if key not in unused[values["objective"]]}
    if values["objective"] == "joint":
        values["reranker"] = str(root / f"{values['model']}-scorer")
    values["model"] = str(root / values["model"])
    return TrainSettings(queries=str(root / "queries"), examples=str(root / "examples"), **values)


def make_world(root: Path) -> None:
    """Passages and queries longer than any length asked for, 127 negatives each, and the start models."""
    import numpy as np
    import pyarrow as pa
    import torch
    from embeddings import write_corpus
    from training_data import write_examples
    from transformers import BertConfig, BertModel

    from raydense.data.generated import commit_queries
    from raydense.data.tables import commit_table
    from raydense.models.cross_encoder import CrossEncoder
    from raydense.models.tiny import make_tiny_encoder
    from raydense.storage import Draft

    words = np.array([f"{i:05o}" for i in range(4_000)])
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(words, 200)) for _ in range(2_400)]
    corpus = write_corpus(root / "corpus", texts)
    queries = [f"q{i}" for i in range(1_024)]
    draft = Draft.open(root / "queries", "queries", {"of": "benchmark"})
    commit_table(
        draft,
        "queries.parquet",
        pa.table({"query_id": queries, "text": texts[: len(queries)], "answers": pa.array([[]] * len(queries), pa.list_(pa.string()))}),
    )
    draft.finish(len(queries))
    rows = np.arange(len(queries))
    negatives = [rng.choice(np.arange(len(queries), len(texts)), 127, replace=False) for _ in rows]
    write_examples(root / "examples", queries, [[row] for row in rows], negatives, corpus=corpus.fingerprint)
    draft = Draft.open(root / "generated", "generated", {"of": "benchmark"})
    commit_queries(draft, "generated-00000.arrow", 0, [[text] for text in texts])
    draft.finish(len(texts), corpus=corpus.fingerprint)
    make_tiny_encoder(texts, root / "tiny", 1)
    for name, widths in _WIDTHS.items():
        make_tiny_encoder(texts, root / name, 1)
        torch.manual_seed(1)
        BertModel(BertConfig(vocab_size=30_522, **widths), add_pooling_layer=False).save_pretrained(root / name)
        CrossEncoder.load(root / name).save(root / f"{name}-scorer")


def measure(name: str, root: Path, kind: str, auto: float) -> None:
    """Two steps; print the peak in bytes, with `auto` of those that fit. Ray Train is imported since a worker of it has it loaded."""
    import ray.train.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from watched import held_at_most

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    settings, device, found = settings_of(name, root), torch.device(kind), {}
    with tempfile.TemporaryDirectory() as group:
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.FileStore(f"{group}/store", 1), rank=0, world_size=1)
        if auto:
            found = {"texts": _that_fit(settings, device, auto)}
            settings = settings.model_copy(update={"micro_batch": found["texts"]})
        _two_steps(settings, device)
        found |= {"resident": held_at_most()}
        if kind == "cuda":
            found |= {"gpu": torch.cuda.max_memory_allocated()}
        if auto:
            found |= {"twice": _fits(settings.model_copy(update={"micro_batch": 2 * found["texts"]}), device)}
        dist.destroy_process_group()
    print(json.dumps(found))


def _that_fit(settings: Any, device: Any, gib: float) -> int:
    """What `micro_batch: auto` finds in so much of the GPU."""
    import torch

    from raydense.training.method import load_model
    from raydense.training.micro_batch import find_micro_batch

    torch.cuda.set_per_process_memory_fraction(gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    return find_micro_batch(settings, settings.model, load_model(settings, settings.model), device, 1)[0]


def _fits(settings: Any, device: Any) -> bool:
    import torch

    try:
        _two_steps(settings, device)
    except torch.OutOfMemoryError:
        return False
    return True


def _two_steps(settings: Any, device: Any) -> None:
    """The first steps of a training, as its loop makes them, until two have updated the weights: fp16's first loss scales may be too large."""
    from raydense.data.store import PassageStore
    from raydense.training.activation_checkpointing import checkpoint_activations, give_memory_back
    from raydense.training.batches import Sampler
    from raydense.training.engine import make_engine
    from raydense.training.method import method_of
    from raydense.training.piece_count import pieces_of
    from raydense.training.precision import precision_for
    from raydense.training.start_model import load_start
    from raydense.training.step import forward_and_backward

    examples, texts = method_of(settings).read(settings, PassageStore(settings.corpus))
    model = load_start(settings, settings.model, device)
    if settings.activation_checkpointing:
        checkpoint_activations(model)
        if device.type == "cpu":
            give_memory_back()
    method, pieces = method_of(settings)(settings, model, texts, 0, 1), pieces_of(settings)
    engine = make_engine(model, settings, device, precision_for(settings, device, model), pieces)
    engine.module.train()
    sampler = Sampler(examples, settings)
    updates = step = 0
    while updates < 2:
        forward_and_backward(engine, method, method.prepare(sampler.step(step)[0]), pieces, list(range(pieces)))
        updates += math.isfinite(engine.step(1e-5))
        step += 1


def measure_in_ray(name: str, root: Path) -> int:
    """The peak in bytes of the worker of a training of two steps; Linux only."""
    import psutil

    from raydense.training.fit import fit

    peaks = [0]

    def watch() -> None:
        while not over.wait(1.0):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "RayTrainWorker" in " ".join(process.cmdline()):
                        status = Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")
                        peaks.append(int(status[1].split()[0]) * 1024)
                except (psutil.NoSuchProcess, FileNotFoundError, IndexError):
                    continue

    over = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            fit(settings_of(name, root).model_copy(update={"output": f"{folder}/o", "max_steps": 2, "log_every": 1}))
    finally:
        over.set()
        watcher.join()
    return max(peaks)


def measure_alone(name: str, root: Path, device: str, auto: float) -> dict[str, int]:
    """What a fresh process that makes two steps held at most, in bytes."""
    command = [sys.executable, __file__, "--measure", name, "--world", str(root), "--device", device, "--auto", str(auto)]
    found: dict[str, int] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS, *ON_GPUS], metavar="NAME")
    parser.add_argument("--world", type=Path, help="keep the data and the models here, and use what is there")
    parser.add_argument("--ray", action="store_true", help="train in a worker of Ray Train")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--auto", type=float, default=0.0, metavar="GIB")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="so many processes next to each other")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure, asked.world, asked.device, asked.auto)
        return 0
    if (asked.device == "cpu" and asked.auto) or (asked.device == "cuda" and asked.ray):
        parser.error("--auto is for --device cuda, --ray for --device cpu")
    if asked.ray and asked.at_once > 1:
        parser.error("--ray: one at a time, since each is watched by the name of its worker")
    with tempfile.TemporaryDirectory() as folder:
        root = made_whole((asked.world or Path(folder)) / "world", make_world)
        names = asked.only or (SETTINGS if asked.device == "cpu" else ON_GPUS)
        failed = 0
        with ThreadPoolExecutor(asked.at_once) as pool:
            for name, found in zip(names, pool.map(lambda name: measured(name, root, asked), names), strict=True):
                print(f"{name}: {compared(settings_of(name, root), found, asked.device) if found else 'failed'}", flush=True)
                failed += not found
        return int(failed > 0)


def measured(name: str, root: Path, asked: argparse.Namespace) -> dict[str, int]:
    """What was held at most, in bytes, and what else is to be said; nothing if the process failed."""
    if asked.ray:
        return {"resident": measure_in_ray(name, root)}
    try:
        return measure_alone(name, root, asked.device, asked.auto)
    except subprocess.CalledProcessError:
        return {}


def compared(settings: Any, found: dict[str, int], device: str) -> str:
    """The estimate and what was measured, in a line."""
    import torch

    from raydense.training.memory import MemoryEstimate

    peak = found.get("gpu", found["resident"])
    estimate = MemoryEstimate(settings, settings.model, torch.device(device)).memory(found.get("texts", settings.micro_batch))
    more = f", resident {found['resident'] / 2**30:.2f} GiB" if "gpu" in found else ""
    if "texts" in found:
        more += f", auto {found['texts']} texts, twice as many {'fit' if found['twice'] else 'do not fit'}"
    return f"{estimate}, measured {peak / 2**30:.2f} GiB, estimated / measured {estimate.total / peak:.2f}{more}"


if __name__ == "__main__":
    sys.exit(main())
