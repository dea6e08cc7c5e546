"""Encoding against its peers in one run, turn by turn: the same folder, texts and cores.

    PYTHONPATH=tests python benchmarks/encode_peers.py [--passages 2000] [--rounds 2] [--model FOLDER] [--corpus corpus.jsonl] [--only NAME ...]

The peers are sentence-transformers' `encode`, its pool of processes (one a core, started before), its OpenVINO backend (left out unless
`pip install "optimum-intel[openvino]"` was possible next to sentence-transformers), and the bare forward: tokens made before, batches sorted
by length, one batch a thread. Starting actors and loading the model is taken off, as in encode.py. Prints passages per second, the ratio
to the first peer (without it, to the bare forward in fp32, which is always measured), and the least cosine with the vectors of the bare fp32 forward.
Give enough passages that the work takes longer than the start varies.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from encode import FEW, least_cosine, make_corpus, ours, parse, read
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from raydense.data.store import PassageStore
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tokens import batches_by_token_budget
from raydense.runtime.session import ensure_ray, physical_cpus

Vectors = NDArray[np.floating]
Way = Callable[[], tuple[float, Vectors]]  # the seconds of the work alone, and the vectors
FIRST, BARE = "sentence-transformers", "bare forward, fp32"
POOL, OPENVINO = f"{FIRST}, its pool of processes", f"{FIRST}, OpenVINO"
HALF, OURS = "bare forward, bf16", [f"raydense, {precision}" for precision in ("fp32", "bf16")]


def main() -> None:
    options = parse(__doc__, passages=2_000, ways=[BARE, HALF, FIRST, POOL, OPENVINO, *OURS])
    with tempfile.TemporaryDirectory(prefix="raydense-encode-") as work, contextlib.ExitStack() as ended:
        for name, passages in (("few", FEW), ("all", options.passages)):
            make_corpus(options.corpus, Path(work) / name, passages)
        texts = PassageStore(Path(work) / "all").passages(np.arange(options.passages))
        ways = dict(_ways(options, texts, Path(work), ended))
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        vectors: dict[str, Vectors] = {}
        for turn in range(options.rounds):
            for name, way in ways.items():
                taken, vectors[name] = way()
                seconds[name].append(taken)
                print(f"turn {turn + 1}: {name} {options.passages / taken:.1f}/s", flush=True)
    _print(options.passages, seconds, vectors)


def _print(passages: int, seconds: dict[str, list[float]], vectors: dict[str, Vectors]) -> None:
    other = FIRST if FIRST in seconds else BARE
    first = min(seconds[other])
    print(f"| | passages/s, each turn | of {other}, best turns | least cosine |\n| --- | --- | --- | --- |")
    for name, taken in seconds.items():
        rates = ", ".join(f"{passages / one:.1f}" for one in taken)
        print(f"| {name} | {rates} | {first / min(taken):.2f} | {least_cosine(vectors[name].astype(np.float64), vectors[BARE]):.6f} |")


def _ways(options: argparse.Namespace, texts: list[str], work: Path, ended: contextlib.ExitStack) -> Iterator[tuple[str, Way]]:
    torch.set_num_threads(physical_cpus())
    yield BARE, _bare(options.model, texts, "fp32")  # the cosines are with it
    if HALF in options.only:
        yield HALF, _bare(options.model, texts, "bf16")
    theirs = SentenceTransformer(options.model, device="cpu")
    os.environ["OMP_NUM_THREADS"] = "1"  # of each process of the pool: more would wait for each other
    if FIRST in options.only:
        yield FIRST, _timed(lambda: theirs.encode(texts, show_progress_bar=False))
    if POOL in options.only:
        pool = theirs.start_multi_process_pool(["cpu"] * physical_cpus())
        ended.callback(theirs.stop_multi_process_pool, pool)
        yield POOL, _timed(lambda: theirs.encode(texts, pool=pool, show_progress_bar=False))
    if OPENVINO in options.only:
        yield from _openvino(options.model, texts)
    for name, precision in zip(OURS, ("fp32", "bf16"), strict=True):
        if name in options.only:
            ensure_ray()
            yield name, _raydense(options, work, precision)


def _openvino(folder: str, texts: list[str]) -> Iterator[tuple[str, Way]]:
    """The backend, unless it cannot be loaded."""
    try:
        model = SentenceTransformer(folder, device="cpu", backend="openvino", model_kwargs={"export": True})
    except Exception as error:  # sentence-transformers raises no class of its own
        print(f"{OPENVINO}: left out, {str(error).splitlines()[0]}", flush=True)
    else:
        yield OPENVINO, _timed(lambda: model.encode(texts, show_progress_bar=False))


def _timed(encode: Callable[[], Vectors]) -> Way:
    def way() -> tuple[float, Vectors]:
        begun = time.perf_counter()
        vectors = encode()
        return time.perf_counter() - begun, vectors

    return way


def _bare(folder: str, texts: list[str], precision: str) -> Way:
    """The forward alone, as fast as this torch gives it."""
    model = DualEncoder.load(folder)
    tokens = model.tokenizer.passages(texts)
    batches = batches_by_token_budget(tokens.lengths, 2_048)

    def forward(batch: NDArray[np.int64]) -> torch.Tensor:
        half = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        with torch.inference_mode(), half:
            return model.encode_passages(tokens.select(batch).pad(model.tokenizer.pad_id, "cpu")).float()

    def way() -> tuple[float, Vectors]:
        with ThreadPoolExecutor(physical_cpus(), initializer=torch.set_num_threads, initargs=(1,)) as threads:
            begun = time.perf_counter()
            found = torch.cat(list(threads.map(forward, batches))).numpy()
            taken = time.perf_counter() - begun
        vectors = np.empty_like(found)
        vectors[np.concatenate(batches)] = found
        return taken, vectors

    return way


def _raydense(options: argparse.Namespace, work: Path, precision: str) -> Way:
    options = argparse.Namespace(**vars(options) | {"precision": precision})

    def way() -> tuple[float, Vectors]:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            start = ours(options, work / "few", Path(folder) / "few")[0]
            seconds, artifact = ours(options, work / "all", Path(folder) / "all")
            computing = artifact.summary["seconds"]  # of the actor: what is left of a start that varies
            print(f"raydense, {precision}: {seconds:.1f} s, of it {start:.1f} for the start; {computing:.1f} s of computing", flush=True)
            counted = options.passages - FEW  # those of the start were computed in its seconds
            return (seconds - start) * options.passages / counted, read(artifact)

    return way


if __name__ == "__main__":
    main()
