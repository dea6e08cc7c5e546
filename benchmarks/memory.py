"""The estimated memory of a training worker against the most that it held: each setting in a fresh process, without Ray's own memory.

    PYTHONPATH=tests python benchmarks/memory.py [--only NAME ...] [--ray]

A process makes two steps (the first has no optimiser state yet) of full-length texts on one CPU worker, as the loop does: batches,
method, engine, pieces; with `--ray` the stage itself makes them in a worker of Ray Train. Printed: the estimate, its parts, the peak resident memory (getrusage), and estimate / peak.
`base` is an encoder of BERT-base size (12 layers of 768, vocabulary 30,522), `small` one of 6 layers of 384, both of random weights.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

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
_WIDTHS = {
    "base": {},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}


def settings_of(name: str, root: Path) -> Any:
    from raydense.training.settings import PretrainSettings, TrainSettings

    values: dict[str, Any] = {"engine": {"name": "ddp"}, "output": str(root / "o"), "corpus": str(root / "corpus"), **SETTINGS[name]}
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


def measure(name: str, root: Path) -> None:
    """Two steps; print the peak in bytes. Ray Train is imported since a worker of it has it loaded."""
    import ray.train.torch  # noqa: F401
    import torch
    import torch.distributed as dist

    from raydense.data.store import PassageStore
    from raydense.training.batches import Sampler
    from raydense.training.engine import make_engine
    from raydense.training.method import load_model, method_of
    from raydense.training.pieces import pieces_of
    from raydense.training.precision import choose_precision
    from raydense.training.step import checkpoint_activations, forward_and_backward, give_memory_back

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    settings, device = settings_of(name, root), torch.device("cpu")
    with tempfile.TemporaryDirectory() as group:
        dist.init_process_group("gloo", store=dist.FileStore(f"{group}/store", 1), rank=0, world_size=1)
        examples, texts = method_of(settings).read(settings, PassageStore(settings.corpus))
        model = load_model(settings, settings.model)
        if settings.activation_checkpointing:
            checkpoint_activations(model)
            give_memory_back()
        method = method_of(settings)(settings, model, texts, 0, 1)
        pieces = pieces_of(settings)
        engine = make_engine(model, settings, device, choose_precision(settings.precision, device), pieces)
        engine.module.train()
        sampler = Sampler(examples, settings)
        for step in range(2):
            forward_and_backward(engine, method, method.prepare(sampler.step(step)[0]), pieces, list(range(pieces)))
            engine.step(1e-5)
        dist.destroy_process_group()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


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
    with tempfile.TemporaryDirectory() as folder:
        fit(settings_of(name, root).model_copy(update={"output": f"{folder}/o", "max_steps": 2, "log_every": 1}))
    over.set()
    watcher.join()
    return max(peaks)


def measure_alone(name: str, root: Path) -> int:
    """The peak in bytes of a fresh process that makes two steps."""
    command = [sys.executable, __file__, "--measure", name, "--world", str(root)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), metavar="NAME", default=list(SETTINGS))
    parser.add_argument("--world", type=Path, help="keep the data and the models here, and use what is there")
    parser.add_argument("--ray", action="store_true", help="train in a worker of Ray Train")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure, asked.world)
        return
    import torch

    from raydense.training.memory import Outline

    with tempfile.TemporaryDirectory() as folder:
        root = asked.world or Path(folder)
        if not (root / "examples").is_dir():
            make_world(root)
        for name in asked.only:
            settings = settings_of(name, root)
            estimate = Outline(settings, settings.model, torch.device("cpu")).memory(settings.micro_batch)
            peak = (measure_in_ray if asked.ray else measure_alone)(name, root)
            print(f"{name}: {estimate}, measured {peak / 2**30:.2f} GiB, estimated / measured {estimate.total / peak:.2f}", flush=True)


if __name__ == "__main__":
    main()
