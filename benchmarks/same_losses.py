"""Whether a change of the training step changes what is learned: the loss curves of each method, by the code of an earlier commit and by today's.

    PYTHONPATH=tests python benchmarks/same_losses.py --commit 5829d5c^ [--steps 20] [--methods retriever mlm] [--micro-batch 8]

The commit is checked out aside. Both codes read the same data and tiny models, with the same seeds, without dropout, on one thread, and run
each method whole and in pieces of --micro-batch texts. Printed: the largest relative difference of a loss, and that of the first step,
before which no weight has changed; then the same with PyTorch's AdamW in place of the fused one, which rounds otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCORES = {"kl", "margin-mse"}
CONTEXT: dict[str, Any] = {"context": "passage"}
METHODS: dict[str, dict[str, Any]] = {
    "retriever": {"negatives": 2},
    "pair": {"negatives": 2},
    "multi-positive": {"negatives": 2},
    "kl": {"negatives": 2},
    "margin-mse": {"negatives": 2},
    "reranker": {"negatives": 2},
    "joint": {"negatives": 2},
    "generator": {},
    "mlm": {},
    "condenser": {},
    "cocondenser": CONTEXT,
    "cotmae": CONTEXT,
}
PRETRAINING = ("mlm", "condenser", "cocondenser", "cotmae")
Curves = dict[str, list[float]]


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "--curves":
        Path(sys.argv[3]).write_text(json.dumps(curves(json.loads(Path(sys.argv[2]).read_text()))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raydense-losses-") as folder:
        work, before = Path(folder), Path(folder, "before")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", before, given.commit], check=True)
        try:
            compare(given, work, before)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)


def compare(given: argparse.Namespace, work: Path, before: Path) -> None:
    """Run both codes and print the table."""
    settings = {f"{name}{piece}": {**made, "steps": given.steps} for name, made, piece in prepared(given, work)}
    plain = {name: {**made, "plain": True} for name, made in settings.items()}
    begun = [started(before, settings, work / "old"), started(ROOT, settings, work / "new"), started(ROOT, plain, work / "plain")]
    old, new, plainly = (ended(process, out) for process, out in begun)
    print(f"{given.steps} steps, {given.commit} and now\n\n| method | first and last loss | first step | all | all, AdamW not fused |")
    print("| --- | --- | --- | --- | --- |")
    for name, was in old.items():
        now, apart = new[name], [_apart(was, other[name]) for other in (new, plainly)]
        print(f"| {name} | {now[0]:.4f}, {now[-1]:.4f} | {apart[0][0]:.0e} | {max(apart[0]):.0e} | {max(apart[1]):.0e} |")


def _apart(one: list[float], other: list[float]) -> list[float]:
    return [abs(a - b) / abs(a) for a, b in zip(one, other, strict=True)]


def prepared(given: argparse.Namespace, work: Path) -> list[tuple[str, dict[str, Any], str]]:
    """Data and models, and the settings of each run: method, settings, what follows the method's name."""
    from training_data import make_training_data

    from raydense.data.store import PassageStore
    from raydense.training.registry import load_method

    data = make_training_data(work / "data")
    scored(data.root / "examples", work / "scored")
    store, runs = PassageStore(data.root / "sample/corpus"), []
    for name in given.methods:
        verb, folder = "pretrain" if name in PRETRAINING else "train", str(work / f"model-{name}")
        load_method(verb, name).make_tiny(store.passages(range(len(store))), folder, 1)
        common: dict[str, Any] = {"model": folder, "corpus": str(data.root / "sample/corpus"), "output": "o", "dropout": 0.0, "lr": 1e-3}
        common |= {"batch_size": 16, "engine": {"name": "ddp"}, **METHODS[name]}
        if verb == "train":
            examples = str(work / "scored" if name in SCORES else data.root / "examples")
            common |= {"objective": name, "queries": str(data.root / "sample/queries"), "examples": examples}
        else:
            common["method"] = name
        if name == "joint":
            common["reranker"] = folder
        runs += [
            (name, {"verb": verb, "settings": common | {"micro_batch": size}}, f", {size} texts a piece" * bool(size))
            for size in (0, given.micro_batch)
        ]
    return runs


def scored(examples: Path, folder: Path) -> None:
    """The same examples with a teacher's scores, drawn at random."""
    import numpy as np
    import pyarrow as pa

    from raydense.data.tables import commit_table, concat_parts
    from raydense.storage import Artifact, Draft

    artifact, random = Artifact.open(examples), np.random.default_rng(1)
    table = concat_parts(artifact.parts(".parquet"), "examples", ["query_id", "positives", "negatives"])
    for kind in ("positive", "negative"):
        drawn = [random.normal(size=len(rows)).astype(np.float32) for rows in table[f"{kind}s"].to_pylist()]
        table = table.append_column(f"{kind}_scores", pa.array(drawn, pa.list_(pa.float32())))
    draft = Draft.open(folder, "examples", {"stage": "test"})
    commit_table(draft, "examples.parquet", table)
    draft.finish(table.num_rows, **artifact.summary)


def started(tree: Path, settings: dict[str, Any], folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that runs the code in a folder, and the file of the curves that it will write."""
    folder.mkdir()
    given, out = folder / "given.json", folder / "curves.json"
    given.write_text(json.dumps(settings))
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, __file__, "--curves", given, out], env=environment), out


def ended(process: subprocess.Popen[bytes], out: Path) -> Curves:
    """The curves of a process, when it is done."""
    if process.wait():
        raise SystemExit(f"a process ended with {process.returncode}")
    found: Curves = json.loads(out.read_text())
    return found


def curves(runs: dict[str, Any]) -> Curves:
    """The losses of the steps of each run, by the code that this process imports."""
    import torch

    import raydense

    assert Path(str(raydense.__file__)).is_relative_to(os.environ["PYTHONPATH"]), "the code of another folder"
    torch.set_num_threads(1)
    fused = torch.optim.AdamW
    found = {}
    for name, run in runs.items():
        torch.optim.AdamW = plain_adamw if run.get("plain") else fused  # type: ignore[assignment,misc]
        found[name] = curve(run)
    return found


def plain_adamw(groups: Any, *, fused: bool = False, **settings: Any) -> Any:
    """PyTorch's AdamW, whichever was asked for."""
    from torch.optim.adamw import AdamW

    return AdamW(groups, **settings)


def curve(run: dict[str, Any]) -> list[float]:
    import torch

    from raydense.data.store import PassageStore
    from raydense.training.batches import Sampler
    from raydense.training.engine import learning_rate, make_engine
    from raydense.training.method import load_model, method_of
    from raydense.training.settings import PretrainSettings, TrainSettings
    from raydense.training.step import forward_and_backward

    try:
        from raydense.training.piece_count import pieces_of
    except ModuleNotFoundError:  # an earlier commit had it there
        from raydense.training.step import pieces_of  # type: ignore[attr-defined,no-redef]

    settings = (TrainSettings if run["verb"] == "train" else PretrainSettings).read(run["settings"])
    kind = method_of(settings)
    examples, texts = kind.read(settings, PassageStore(settings.corpus))
    model = load_model(settings, settings.model)
    method, pieces, sampler = kind(settings, model, texts, 0, 1), pieces_of(settings), Sampler(examples, settings)
    engine = make_engine(model, settings, torch.device("cpu"), "fp32", pieces)
    engine.module.train()
    losses = []
    for step in range(run["steps"]):
        (part,) = sampler.step(step)
        measured = forward_and_backward(engine, method, method.prepare(part), pieces, list(range(pieces)))
        engine.step(learning_rate(step, run["steps"], settings))
        losses.append(float(measured["loss"]))
    return losses


if __name__ == "__main__":
    main()
