"""Trains by every method on one GPU, as `raydense train` and `raydense pretrain` do it: in fp32, bf16 and fp16, by each engine.

    PYTHONPATH=tests python benchmarks/gpu_training.py [--steps 100] [--out FOLDER] [--only WORD ...] [--at-once 4] [--device cuda]

Each has a worker of Ray Train, and the tiny model on random texts whose queries are parts of their positives; so many processes as
`--at-once`, with a Ray each, share the trainings. Printed for each: the mean loss of its first and of its last steps (in bf16 and fp16 they should be near those of
fp32), the steps that it skipped, the GPU memory that it took at most, and its seconds; or its error. A training that is done in FOLDER is
not made again; a FOLDER of the other device is refused. With `--device cpu` those in fp32 and bf16 run on the CPU, also where there is a GPU, which
shows that the script runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kept import refuse_others

ENDS = 10  # the first and the last steps whose losses are shown
ZERO = {zero: {"name": "deepspeed", "zero": zero} for zero in (1, 2, 3)}
DDP: dict[str, Any] = {"name": "ddp"}


def main() -> int:
    given = _arguments()
    if given.make:
        for name in given.make:
            print(json.dumps({name: made(given.out, name, given.steps)}), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder)
        refuse_others(out / "asked.json", {"device": given.device}, [out / "data"])
        _prepare(out)
        names = [name for name in trainings(given.device) if not given.only or any(word in name for word in given.only)]
        if not names:
            raise SystemExit("--only names no training")
        print("| training | first losses | last losses | skipped | GPU, GiB | seconds |\n| --- | --- | --- | --- | --- | --- |")
        groups = [names[number :: given.at_once] for number in range(min(given.at_once, len(names)))]
        with ThreadPoolExecutor(given.at_once) as pool:
            done = sum(pool.map(lambda group: _shown(out, group, given), groups))
    return int(done < len(names))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", metavar="WORD")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--make", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def trainings(device: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Verb, method and settings of every training, by its name."""
    from raydense.training.registry import built_in

    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for verb in ("train", "pretrain"):
        for method in built_in(verb):
            for precision in ("fp32", "bf16", "fp16"):
                # DeepSpeed casts all weights, and some of a T5 leave the range of fp16
                engine = DDP if (method, precision) == ("generator", "fp16") else ZERO[1]
                found[f"{method}, {precision}"] = (verb, method, {"precision": precision, "engine": engine})
    for zero in (2, 3):
        for precision in ("bf16", "fp16"):
            found[f"retriever, {precision}, ZeRO {zero}"] = ("train", "retriever", {"precision": precision, "engine": ZERO[zero]})
    for zero in (1, 2, 3):
        offload = {"precision": "fp16", "engine": {**ZERO[zero], "offload": True}}
        found[f"retriever, fp16, ZeRO {zero}, offload"] = ("train", "retriever", offload)
    pieces = {"precision": "fp16", "engine": ZERO[2], "micro_batch": 4, "accumulation": 2}
    found |= {
        "retriever, fp16, DDP": ("train", "retriever", {"precision": "fp16", "engine": DDP}),
        "retriever, fp16, DDP, LAMB": ("train", "retriever", {"precision": "fp16", "engine": DDP, "optimizer": "lamb"}),
        "retriever, fp32 with TF32": ("train", "retriever", {"precision": "fp32", "engine": ZERO[1], "tf32": True}),
        "retriever, fp16, ZeRO 2, in pieces and parts": ("train", "retriever", pieces),
        "joint, fp16, ZeRO 2, auto": ("train", "joint", {"precision": "fp16", "engine": ZERO[2], "micro_batch": "auto"}),
        "joint, fp16, ZeRO 3, auto": ("train", "joint", {"precision": "fp16", "engine": ZERO[3], "micro_batch": "auto"}),
        "reranker, fp16, checkpointed": ("train", "reranker", {"precision": "fp16", "engine": ZERO[1], "activation_checkpointing": True}),
    }
    return found if device == "cuda" else {name: one for name, one in found.items() if one[2]["precision"] != "fp16"}


def _prepare(out: Path) -> None:
    """The data and the models of all trainings."""
    for verb, method, more in trainings("cuda").values():
        _settings(out, verb, method, more)


def _settings(out: Path, verb: str, method: str, more: dict[str, Any]) -> Any:
    import torch
    from gpu_rows import Place
    from gpu_world import training_settings

    place = Place(torch.device("cpu"), tiny=True, folder=out)
    return training_settings(place, verb, method, **{"lr": 1e-3, "dropout": 0.0, "batch_size": 16, "log_every": 50, **more})


def made(out: Path, name: str, steps: int) -> str:
    """Train, and say what it gave, or why it failed."""
    from raydense.training.fit import fit
    from raydense.training.history import read_history

    settings = _settings(out, *trainings("cuda")[name])
    try:
        artifact = fit(settings.model_copy(update={"output": str(out / _folder(name)), "max_steps": steps, "max_failures": 0}))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
    losses = [line["loss"] for line in read_history(artifact.path / "history.jsonl") if "loss" in line]
    first, last = (sum(some) / len(some) for some in (losses[:ENDS], losses[-ENDS:]))
    skipped, memory = artifact.summary.get("steps_skipped", 0), artifact.summary["memory"]
    return f"{first:.4f} | {last:.4f} | {skipped} | {memory:.2f} | {artifact.summary['seconds']:.0f}"


def _shown(out: Path, names: list[str], given: argparse.Namespace) -> int:
    """Make trainings in a process, and print a line as each is done; returns how many did not fail."""
    command, good = [sys.executable, __file__, "--out", str(out), "--steps", str(given.steps), "--make", *names], 0
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if given.device == "cpu" else {})  # Ray Train takes a GPU that is there
    with (
        open(out / f"{_folder(names[0])}.log", "w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            for name, said in json.loads(line).items() if line.startswith("{") else ():
                print(f"| {name} | {said} |", flush=True)
                good += " | " in said
    return good


def _folder(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
