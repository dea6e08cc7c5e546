"""A training step against the trainers that users take and a bare PyTorch loop: the same model, texts, loss, batch and cores, in turns.

    PYTHONPATH=tests python benchmarks/train_peers.py --method retriever --corpus CORPUS --queries QUERIES --examples EXAMPLES --model FOLDER
        [--batch-size 64] [--negatives 1] [--length 256] [--steps 4] [--precision fp32] [--engine deepspeed] [--micro-batch 0]
        [--turns 0] [--threads 0] [--peer PYTHON] [--device cuda]

    retriever   in-batch negatives        sentence-transformers' trainer with MultipleNegativesRankingLoss
    reranker    pointwise                 its CrossEncoderTrainer with BinaryCrossEntropyLoss
    joint       RocketQAv2                the bare loop alone: sentence-transformers has no such method
    mlm         masked tokens             transformers' Trainer; the others get the tokens that raydense has masked

Each way is a process of its own that makes one step when it is asked to, so that a busy machine slows all alike: `raydense` as a worker of
`train` makes it (its engine, and the allocator that its workers get), `bare` by hand with PyTorch's AdamW, `trainer` by the trainer above.
Threads that wait sleep in all of them, as `train` has it: on a busy machine those that do not would slow the others by ten times.
With --turns N one process runs after the other, N times, where memory does not hold all at once. Dropout is off, the learning rate 0, so the
losses of all ways are the same: in fp32 it is an error if they differ by more than 1e-5 of themselves, on a GPU 1e-4. --precision bf16 is the setting
of raydense (on CPUs and with --engine ddp by autocast), autocast of the bare loop, and `bf16=True` of the trainers; auto is what each does by itself:
fp32 but for raydense, which takes bf16 where the processor gains by it, and on a GPU. The trainers need the packages
`datasets` and `accelerate`; --peer names the Python that has them. Prints the seconds and CPU seconds of each step without the first of a process, the ratio
of the best ones to raydense's, the largest difference of a loss to raydense's, and the most memory of a process, its first step included.

--device cuda is one GPU for all, the first that CUDA_VISIBLE_DEVICES names. A step then ends when the GPU has done it; GiB are those of
tensors on the GPU (`torch.cuda.max_memory_allocated`); --precision may be fp16, with the loss scaled in every way. CPU seconds include waiting for the GPU.
Each way tokenises within its step, raydense too, whose `train` does that during the steps before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from step_job import Job
from turns import Ratio, ratio

HERE = Path(__file__).resolve().parent
WAYS = {"raydense": "step_ours.py", "bare": "step_bare.py", "trainer": "step_trainer.py"}
METHODS = ("retriever", "reranker", "joint", "mlm")
SAME = {"cpu": 1e-5, "cuda": 1e-4}

Said = dict[str, list[dict[str, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, default="retriever")
    for name in ("corpus", "queries", "examples", "model"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in (
        ("batch-size", 64),
        ("negatives", 1),
        ("length", 256),
        ("steps", 4),
        ("micro-batch", 0),
        ("turns", 0),
        ("threads", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16", "auto"], default="fp32")
    parser.add_argument("--device", choices=list(SAME), default="cpu")
    parser.add_argument("--engine", choices=["deepspeed", "ddp"], default="deepspeed", help="of raydense")
    parser.add_argument("--peer", default=sys.executable, help="the Python that has the trainers")
    parser.add_argument("--only", nargs="+", default=list(WAYS), choices=WAYS)
    given = vars(parser.parse_args())
    if given["precision"] == "fp16" and given["device"] == "cpu":
        parser.error("--precision fp16 needs --device cuda")
    count, turns, peer, ways = (given.pop(name) for name in ("steps", "turns", "peer", "only"))
    ways = [way for way in ways if way != "trainer" or given["method"] != "joint"]
    with tempfile.TemporaryDirectory() as folder:
        job = prepared(Path(folder), count + 1, **given)
        said: Said = {way: [] for way in ways}
        for group in [[way] for way in ways] * turns or [ways]:
            for way, steps in in_turns(job, Path(folder), group, peer).items():
                said[way] += steps
    report(given, said, count + 1)


def prepared(folder: Path, count: int, **given: Any) -> Job:
    """The job of all ways, for `count` steps; their models and texts are written to `folder`."""
    from step_ours import choose_steps, write_models

    models = write_models(given.pop("model"), given["method"], folder / "model")
    job = Job(texts=str(folder / "texts.json"), sampled=[], **models, **given)
    sampled, texts = choose_steps(job, count)
    Path(job.texts).write_text(json.dumps(texts))
    return replace(job, sampled=sampled)


def in_turns(job: Job, folder: Path, ways: Sequence[str], peer: str = sys.executable) -> Said:
    """What each way says of each step."""
    job.write(folder / "job.json")
    processes = {way: started(way, str(folder / "job.json"), peer, job.device) for way in ways}
    said: Said = {way: [] for way in ways}
    for step in range(len(job.sampled)):
        for way, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            line = next((line for line in process.stdout if line.startswith("{")), "")
            if not line:
                raise SystemExit(f"{way} ended with {process.wait()}")
            said[way].append(json.loads(line))
            print(f"step {step}: {way} {said[way][-1]}", file=sys.stderr, flush=True)
    for process in processes.values():
        process.communicate()
    return said


def started(way: str, job: str, peer: str, device: str) -> subprocess.Popen[str]:
    """The process of a way, which waits until it is asked for a step."""
    python, environment = sys.executable, {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    if device == "cuda":  # sentence-transformers' trainer would take all
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if way == "raydense" and device == "cpu":
        from raydense.runtime.allocator import cpu_worker_env

        environment |= cpu_worker_env()
    elif way == "trainer":
        python = peer
        environment.pop("PYTHONPATH", None)
    command = [python, str(HERE / WAYS[way]), job]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def report(given: dict[str, Any], said: Said, of_process: int) -> None:
    """Print the table; an error if losses differ that should not."""
    first = next(iter(said))
    on = f"{given['precision']}, {given['device']}"
    print(f"{given['method']}, {given['batch_size']} x {given['length']} tokens, {given['negatives']} negatives, {on}")
    print(f"\n| way | seconds of each step | CPU seconds | times {first}'s, best: wall, CPU | mean loss | differs | GiB |\n|{' --- |' * 7}")
    differs = {way: max(map(_apart, steps, said[first])) for way, steps in said.items()}
    for way, steps in said.items():
        kinds = [[of_warm(each, kind, of_process) for kind in ("seconds", "cpu")] for each in (steps, said[first])]
        spent = [", ".join(f"{one:.3g}" for one in seconds) for seconds in kinds[0]]
        times = ", ".join(f"{min(own) / min(ours):.2f}" for own, ours in zip(*kinds, strict=True))
        loss, most = sum(step["loss"] for step in steps) / len(steps), max(step["gib"] for step in steps)
        print(f"| {way} | {spent[0]} | {spent[1]} | {times} | {loss:.5f} | {differs[way]:.0e} | {most:.2f} |")
    if given["precision"] == "fp32" and max(differs.values()) > SAME[given["device"]]:
        raise SystemExit("the losses differ")


def of_warm(steps: list[dict[str, float]], kind: str, of_process: int) -> list[float]:
    """The seconds of the steps, without the first of each process, which had `of_process`."""
    return [step[kind] for number, step in enumerate(steps) if number % of_process]


def _apart(one: dict[str, float], other: dict[str, float]) -> float:
    return abs(one["loss"] - other["loss"]) / abs(other["loss"])


def small(work: Path) -> dict[str, Ratio]:
    """A step of each method against the bare loop, 6 layers of 384 and the sample's texts, in CPU seconds of one thread."""
    from random_models import model_folder
    from training_data import make_training_data

    from raydense.data.store import PassageStore

    data = make_training_data(work)
    store = PassageStore(data.root / "sample/corpus")
    folders = {name: str(data.root / where) for name, where in SAMPLE.items()}
    folders["model"] = str(model_folder("six", work, store.passages(range(len(store)))))
    shape: dict[str, Any] = {"batch_size": 8, "negatives": 1, "length": 64, "precision": "fp32", "engine": "deepspeed"}
    shape |= {"micro_batch": 0, "threads": 1, "device": "cpu"}
    found = {}
    for method in METHODS:
        (work / method).mkdir()
        job = prepared(work / method, STEPS, method=method, **folders, **shape)
        said = in_turns(job, work / method, ["raydense", "bare"])
        if max(map(_apart, said["bare"], said["raydense"])) > SAME["cpu"]:
            raise SystemExit(f"the losses of {method} differ")
        found[f"{method} / bare"] = ratio(*(of_warm(steps, "cpu", STEPS) for steps in said.values()))
    return found


STEPS = 4
SAMPLE = {"corpus": "sample/corpus", "queries": "sample/queries", "examples": "examples"}


if __name__ == "__main__":
    main()
