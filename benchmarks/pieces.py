"""A training step that runs in pieces: its seconds, its padded tokens, and its loss, of methods whose loss couples the queries or not.

    python benchmarks/pieces.py --corpus CORPUS --queries QUERIES --examples EXAMPLES [--steps 3] [--methods mlm retriever]

The same batches without dropout at every commit: the losses of two commits compare, and their CPU seconds on one machine. Tokens are those
that the model was given, in all forwards of the steps, padding included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from raydense.data.store import PassageStore
from raydense.models.cross_encoder import CrossEncoder
from raydense.training.batches import Sampler
from raydense.training.engine import make_engine
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import load_model, method_of
from raydense.training.piece_count import pieces_of
from raydense.training.settings import PretrainSettings, TrainSettings
from raydense.training.step import forward_and_backward

CPU = torch.device("cpu")
METHODS: dict[str, dict[str, Any]] = {
    "retriever": {"negatives": 3, "query_length": 32, "passage_length": 256},
    "retriever, own list": {"objective": "retriever", "negatives": 3, "in_batch": False, "query_length": 32, "passage_length": 256},
    "joint": {"negatives": 7, "query_length": 32, "passage_length": 256, "pair_length": 288},
    "reranker": {"negatives": 3, "pair_length": 256},
    "generator": {"passage_length": 256},
    "mlm": {"passage_length": 256},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "queries", "examples"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| method | pieces | loss of each step | tokens given | real | CPU seconds |", "|" + " --- |" * 6, sep="\n")
    for name in given.methods:
        with tempfile.TemporaryDirectory() as aside:
            print(_row(name, given, Path(aside)), flush=True)


def _settings(name: str, given: argparse.Namespace) -> LoopSettings:
    common = {
        "output": "o",
        "model": "tiny",
        "corpus": given.corpus,
        "dropout": 0.0,
        "engine": {"name": "ddp"},
        "batch_size": given.batch_size,
    }
    common |= {"micro_batch": given.micro_batch, **METHODS[name]}
    if name == "mlm":
        return PretrainSettings.read({"method": name, **common})
    scorer = {"reranker": "scorer"} if name == "joint" else {}
    return TrainSettings.read({"objective": name, "queries": given.queries, "examples": given.examples, **scorer, **common})


def _row(name: str, given: argparse.Namespace, aside: Path) -> str:
    settings = _settings(name, given)
    kind, store = method_of(settings), PassageStore(given.corpus)
    kind.make_tiny(store.passages(range(0, len(store), 10)), aside / "tiny", 0)
    if name == "joint":
        torch.manual_seed(0)
        CrossEncoder.load(aside / "tiny").save(aside / "scorer")
        settings = settings.model_copy(update={"reranker": str(aside / "scorer")})
    examples, texts = kind.read(settings, store)
    model = load_model(settings, str(aside / "tiny"))
    method, pieces = kind(settings, model, texts, 0, 1), pieces_of(settings)
    engine: Any = make_engine(model, settings, CPU, "fp32", pieces)
    engine.module.train()
    given_tokens, real, losses, forward = 0, 0, [], engine.forward

    def counted(**batch: Any) -> Any:
        nonlocal given_tokens
        given_tokens += sum(one["attention_mask"].numel() for one in batch.values())
        return forward(**batch)

    engine.forward = counted
    batches = [method.prepare(part) for step in range(given.steps) for part in Sampler(examples, settings).step(step)]
    begun = time.process_time()
    for batch in batches:
        real += sum(int(one["attention_mask"].sum()) for one in batch.values() if isinstance(one, dict))
        losses.append(float(forward_and_backward(engine, method, batch, pieces, list(range(pieces)))["loss"]))
        engine.step(1e-3)
    took = time.process_time() - begun
    return f"| {name} | {pieces} | {', '.join(f'{loss:.6f}' for loss in losses)} | {given_tokens:,} | {real:,} | {took:.1f} |"


if __name__ == "__main__":
    main()
