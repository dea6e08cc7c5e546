"""Query generation against a bare loop of transformers' own `generate`: the same folder, passages, batches, settings and cores, in one run.

    PYTHONPATH=tests python benchmarks/generate.py --model FOLDER --corpus CORPUS [--passages 5000] [--length 24]

FOLDER is a generator, CORPUS a corpus artifact. Prints queries per second of: the bare loop with all cores; one actor with all cores;
one actor held to one core, and two such actors. Ray is started before; what starting actors and loading the model costs is measured
with a corpus of 8 passages, and taken off. The bare loop has a tenth of the passages. The queries are not compared: the two draw other random numbers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np
import torch
from bm25 import Zipf
from embeddings import write_corpus
from transformers import AutoModelForSeq2SeqLM
from turns import Ratio, between_commits, in_turns, ratios

from raydense.data.store import CorpusWriter, PassageStore
from raydense.inference.generate import generate
from raydense.inference.settings import GenerateSettings
from raydense.models.generator import Generator, decode
from raydense.models.tiny import make_tiny_generator
from raydense.models.tokens import batches_by_token_budget
from raydense.runtime.session import ensure_ray, physical_cpus
from raydense.storage import Draft

EACH = 5
FEW = 8  # passages whose queries are the start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--passages", type=int, default=5_000)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--one-core", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raydense-generate-") as work:
        if options.one_core:  # before Ray starts, whose processes inherit it
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        store = make_corpora(options, Path(work))
        if options.one_core:
            print(rate(options, Path(work), "1,1"))
        else:
            compare(options, Path(work), store)


def make_corpora(options: argparse.Namespace, work: Path) -> PassageStore:
    store = PassageStore(options.corpus)
    for name, passages, files in (("few", FEW, 2), ("all", options.passages, 4)):
        writer = CorpusWriter(Draft.open(work / name, "corpus", {"benchmark": passages}), -(-passages // files))
        writer.add(store.slice(0, passages))
        writer.finish()
    return store


def compare(options: argparse.Namespace, work: Path, store: PassageStore) -> None:
    """Time all of them, in turn, and print."""
    some = options.passages // 10  # it has no start to be taken off, and is slow
    theirs = some * EACH / bare(options, store.passages(np.arange(some)))
    print(f"transformers, {physical_cpus()} threads: {theirs:.1f} queries/s", flush=True)
    whole = rate(options, work, "1,1")
    print(f"one actor, all cores: {whole:.1f} queries/s, {whole / theirs:.2f} of that", flush=True)
    held = subprocess.run([sys.executable, *sys.argv, "--one-core"], check=True, stdout=subprocess.PIPE, text=True)
    one, two = float(held.stdout.split()[-1]), rate(options, work, "2,2")
    print(f"one actor, one core: {one:.1f} queries/s; two actors of one core each: {two:.1f}, {two / one:.2f} of that")


def rate(options: argparse.Namespace, work: Path, concurrency: str) -> float:
    """Queries per second of the stage, without its start."""
    ensure_ray()
    start, whole = (ours(options, work, corpus, concurrency) for corpus in ("few", "all"))
    return (options.passages - FEW) * EACH / (whole - start)  # those of the start were computed in its seconds


def bare(options: argparse.Namespace, texts: list[str]) -> float:
    """Seconds of transformers' `generate` over the same batches, tokenised before, decoded as ours are."""
    torch.set_num_threads(physical_cpus())
    model, reader = AutoModelForSeq2SeqLM.from_pretrained(options.model).eval(), Generator.load(options.model)
    begun = time.perf_counter()
    tokens = reader.tokenize_passages(texts)
    budget = GenerateSettings.model_fields["token_budget"].default
    for batch in batches_by_token_budget(tokens.lengths + EACH * options.length, budget):
        with torch.inference_mode():
            found = model.generate(
                **tokens.select(batch).pad(reader.tokenizer.pad_id),
                do_sample=True,
                top_p=0.95,
                top_k=25,
                num_return_sequences=EACH,
                max_new_tokens=options.length,
            )
        decode(reader.tokenizer, found)
    return time.perf_counter() - begun


def ours(options: argparse.Namespace, work: Path, corpus: str, concurrency: str) -> float:
    """Seconds of the stage."""
    inputs = {"model": options.model, "corpus": str(work / corpus), "output": str(work / f"{corpus}-{concurrency[0]}")}
    begun = time.perf_counter()
    generate(GenerateSettings.read({**inputs, "query_length": options.length, "queries_each": EACH, "concurrency": concurrency}))
    return time.perf_counter() - begun


def small(work: Path) -> dict[str, Ratio]:
    """A tiny generator and 1,000 passages, its start apart, against transformers' `generate` of 50 of them."""
    texts = Zipf().texts(np.random.default_rng(2).integers(30, 60, 1_000)).to_pylist()
    write_corpus(work / "corpus", texts, shard_rows=250)
    make_tiny_generator(texts, work / "generator", seed=1)
    options, names = argparse.Namespace(model=str(work / "generator"), length=24), (f"generated-{turn}" for turn in count())
    ensure_ray()

    def ours() -> float:
        output, inputs = work / next(names), {"model": options.model, "corpus": str(work / "corpus")}
        generate(GenerateSettings.read({**inputs, "output": str(output), "query_length": options.length, "queries_each": EACH}))
        return between_commits(output, "*-0*.arrow", len(texts))

    theirs = texts[:50]
    seconds = in_turns({"generate": ours, "transformers": lambda: bare(options, theirs) / len(theirs)}, 2, warm=False)
    return ratios(seconds, "transformers")


if __name__ == "__main__":
    main()
