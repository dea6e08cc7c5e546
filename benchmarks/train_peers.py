"""A training step against sentence-transformers' trainer and a bare PyTorch loop: the same model, texts, loss, batch and cores, in turns.

    PYTHONPATH=tests python benchmarks/train_peers.py --corpus CORPUS --queries QUERIES --examples EXAMPLES --model FOLDER
        [--batch-size 64] [--negatives 1] [--length 256] [--steps 4] [--peer PYTHON]

Each way is a process of its own that makes one step when it is asked to, so that a busy machine slows all alike: `raydense` as a worker of
`train` makes it (DeepSpeed, and the allocator that its workers get), `bare` by hand with PyTorch's AdamW, `sentence-transformers` by its
trainer with MultipleNegativesRankingLoss. Dropout is off, the learning rate 0, so that the losses can be compared: the batches are the same.
The trainer needs the packages `datasets` and `accelerate`; --peer names the Python that has them. Prints the seconds of each step without
the first, the ratio of the best ones to raydense's, the mean loss, and the most memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WAYS = ("raydense", "bare", "sentence-transformers")
SCALE = 20.0  # 1 / temperature


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "queries", "examples", "model"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (("batch-size", 64), ("negatives", 1), ("length", 256), ("steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has sentence-transformers with its trainer")
    parser.add_argument("--only", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--texts", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        _serve(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        given.texts = str(Path(folder, "texts.json"))
        _write_texts(given)
        _print(given, _in_turns(given))


def _settings(given: argparse.Namespace) -> Any:
    from raydense.training.settings import TrainSettings

    lengths = {"query_length": given.length, "passage_length": given.length}
    folders = {name: getattr(given, name) for name in ("corpus", "queries", "examples", "model")}
    batch = {"batch_size": given.batch_size, "negatives": given.negatives, "temperature": 1 / SCALE}
    return TrainSettings(objective="retriever", output="o", dropout=0.0, lr=1e-30, warmup=0.0, **lengths, **folders, **batch)


def _sampled(given: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The settings, the parts of all steps, and the texts."""
    from raydense.data.store import PassageStore
    from raydense.training.batches import Sampler
    from raydense.training.method import method_of

    settings = _settings(given)
    examples, texts = method_of(settings).read(settings, PassageStore(given.corpus))
    sampler = Sampler(examples, settings)
    return settings, [sampler.step(step)[0] for step in range(given.steps + 1)], texts


def _write_texts(given: argparse.Namespace) -> None:
    """The texts of every step, for the ways that are not ours: anchors, positives and negatives."""
    _, parts, texts = _sampled(given)
    rows = []
    for part in parts:
        columns = [texts.queries(part.query), texts.passages(part.positives[:, 0])]
        columns += [texts.passages(part.negatives[:, number]) for number in range(given.negatives)]
        rows.append(columns)
    Path(given.texts).write_text(json.dumps(rows))


def _in_turns(given: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """What each way says of each step."""
    processes = {way: _started(way, given) for way in given.only}
    said: dict[str, list[dict[str, float]]] = {way: [] for way in given.only}
    for step in range(given.steps + 1):
        for way, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            line = next((line for line in process.stdout if line.startswith("{")), "")
            if not line:
                raise SystemExit(f"{way} ended; run it with --way {way} to see why")
            said[way].append(json.loads(line))
            print(f"step {step}: {way} {said[way][-1]}", file=sys.stderr, flush=True)
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return said


def _started(way: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    python, environment = sys.executable, dict(os.environ)
    if way == "raydense":
        from raydense.runtime.allocator import cpu_worker_env

        environment |= cpu_worker_env()
    elif way == "sentence-transformers":
        python = given.peer
        environment.pop("PYTHONPATH", None)
    flags = [part for name in ("corpus", "queries", "examples", "model", "texts") for part in (f"--{name}", str(getattr(given, name)))]
    flags += [
        part
        for name in ("batch_size", "negatives", "length", "steps")
        for part in (f"--{name.replace('_', '-')}", str(getattr(given, name)))
    ]
    command = [python, __file__, "--way", way, *flags]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _serve(given: argparse.Namespace) -> None:
    """Make a step for each line of standard input, and say its seconds and its loss."""
    {"raydense": _ours, "bare": _bare, "sentence-transformers": _trainer}[given.way](given)


def _say(seconds: float, loss: float) -> None:
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": round(seconds, 3), "loss": round(loss, 6), "gib": round(held, 2)}), flush=True)


def _ours(given: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from raydense.runtime.session import physical_cpus
    from raydense.training.engine import make_engine
    from raydense.training.method import load_model, method_of
    from raydense.training.step import forward_and_backward

    torch.set_num_threads(physical_cpus())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    settings, parts, texts = _sampled(given)
    model = load_model(settings, settings.model)
    method = method_of(settings)(settings, model, texts, 0, 1)
    engine = make_engine(model, settings, torch.device("cpu"), "fp32")
    engine.module.train()
    for line in sys.stdin:
        begun = time.perf_counter()
        measured = forward_and_backward(engine, method, method.prepare(parts[int(line)]), 1, [0])
        engine.step(settings.lr)
        _say(time.perf_counter() - begun, measured["loss"].item())


def _bare(given: argparse.Namespace) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(given.model), AutoModel.from_pretrained(given.model, add_pooling_layer=False)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-30)

    def vectors(texts: list[str]) -> torch.Tensor:
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=given.length, return_tensors="pt")
        states, mask = model(**tokens).last_hidden_state, tokens["attention_mask"].unsqueeze(2)
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)

    rows = json.loads(Path(given.texts).read_text())
    for line in sys.stdin:
        columns, begun = rows[int(line)], time.perf_counter()
        scores = vectors(columns[0]) @ vectors([text for column in columns[1:] for text in column]).T
        loss = torch.nn.functional.cross_entropy(SCALE * scores, torch.arange(len(scores)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        _say(time.perf_counter() - begun, loss.item())


def _trainer(given: argparse.Namespace) -> None:
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    class Trainer(SentenceTransformerTrainer):
        """Makes a step when it is asked to, with the batches in their order."""

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def get_batch_sampler(self, dataset: Any, batch_size: int, **_: Any) -> Any:
            return torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(dataset), batch_size, drop_last=True)

        def training_step(self, *args: Any, **more: Any) -> Any:
            begun = next(asked)
            loss = super().training_step(*args, **more)
            done.append((begun, loss.item()))
            return loss

    from transformers import TrainerCallback

    class Says(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            begun, loss = done[-1]
            _say(time.perf_counter() - begun, loss)

    def _asked() -> Iterator[float]:
        for _ in sys.stdin:
            yield time.perf_counter()

    asked, done = _asked(), []
    rows = json.loads(Path(given.texts).read_text())
    names = ["anchor", "positive", *(f"negative_{number}" for number in range(given.negatives))]
    data = Dataset.from_dict({name: [text for columns in rows for text in columns[number]] for number, name in enumerate(names)})
    model = SentenceTransformer(given.model, device="cpu")
    model.max_seq_length = given.length
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    with tempfile.TemporaryDirectory() as aside:
        arguments = SentenceTransformerTrainingArguments(
            aside, per_device_train_batch_size=given.batch_size, num_train_epochs=1, learning_rate=1e-30, save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        Trainer(model, arguments, data, loss=MultipleNegativesRankingLoss(model, scale=SCALE), callbacks=[Says()]).train()


def _print(given: argparse.Namespace, said: dict[str, list[dict[str, float]]]) -> None:
    best: dict[str, float] = {way: min(step["seconds"] for step in steps[1:]) for way, steps in said.items()}
    ours = best.get("raydense", float("nan"))
    print("| way | seconds of each step | times raydense's, best steps | mean loss | GiB |\n| --- | --- | --- | --- | --- |")
    for way, steps in said.items():
        seconds = ", ".join(f"{step['seconds']:.1f}" for step in steps[1:])
        loss = sum(step["loss"] for step in steps) / len(steps)
        print(f"| {way} | {seconds} | {best[way] / ours:.2f} | {loss:.5f} | {steps[-1]['gib']:.1f} |")


if __name__ == "__main__":
    main()
