"""How long splitting takes, and how much memory: `python benchmarks/split.py --corpus medquad/corpus.jsonl --model FOLDER [--copies 1 5]`.

Writes a corpus of so many copies of the documents, and splits it at 144 tokens of the model's tokenizer in a fresh process. Prints the
CPU time of that process and of Ray's, the peak memory of that process, and the fingerprint of the passages, which is the same whatever the code
and however the work is divided.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from bm25 import Zipf
from embeddings import write_corpus
from turns import Ratio, Way, in_turns, ratio
from watched import held_at_most

import raydense as rd
from raydense.data.store import CorpusWriter
from raydense.models.tiny import make_tiny_encoder
from raydense.models.tokenizer import tokenizer_of_passages
from raydense.storage import Draft


def write(folder: Path, source: Path, copies: int) -> None:
    """Write a corpus of `copies` of each document of a BEIR corpus.jsonl."""
    with open(source, encoding="utf-8") as lines:  # splitlines would cut at U+2028, too
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if row["text"].strip()]
    writer = CorpusWriter(Draft.open(folder, "corpus", {"copies": copies}), 25_000)
    for copy in range(copies):
        ids = [f"{copy}-{row['_id']}" for row in rows]
        writer.add(pa.table({"passage_id": ids, "title": [row.get("title", "") for row in rows], "text": [row["text"] for row in rows]}))
    writer.finish()


def measure(corpus: str, model: str, output: str) -> dict[str, float | str]:
    """Split in this process."""
    start = time.perf_counter()
    made = rd.split(rd.SplitSettings(corpus=corpus, model=model, output=output))
    wall = time.perf_counter() - start
    times = [each.cpu_times() for each in (psutil.Process(), *psutil.Process().children(recursive=True))]
    peak = held_at_most() / 2**20
    cpu = sum(each.user + each.system for each in times)
    digest = hashlib.sha256("".join(f"{file.path} {file.sha256}\n" for file in made.files).encode()).hexdigest()[:16]
    return {"passages": made.rows, "CPU s": cpu, "wall s": wall, "peak MiB": peak, "digest": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(*given.measure)))
        return
    if not (given.corpus and given.model):
        parser.error("--corpus and --model are needed")
    for copies in given.copies:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "corpus", given.corpus, copies)
            run = [sys.executable, __file__, "--measure", f"{folder}/corpus", given.model, f"{folder}/passages"]
            found = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout)
            figures = ", ".join(f"{name} {value if isinstance(value, str) else f'{value:,.1f}'}" for name, value in found.items())
            print(f"{copies} copies: {figures}", flush=True)


def small(work: Path) -> dict[str, Ratio]:
    """500 documents of 20 sentences, by tokens and by words, against the tokenizer alone and against Python's own split, in CPU seconds."""
    sentences = Zipf().texts(np.random.default_rng(2).integers(8, 20, 10_000)).to_pylist()
    texts = [". ".join(sentences[at : at + 20]).capitalize() + "." for at in range(0, len(sentences), 20)]
    write_corpus(work / "corpus", texts, shard_rows=25_000)
    make_tiny_encoder(texts[:500], work / "model", seed=1)
    tokenizer, outputs = tokenizer_of_passages(work / "model").backend_tokenizer, (f"{work}/out-{turn}" for turn in count())
    given = {"corpus": str(work / "corpus")}
    ways: dict[str, Way] = {
        "tokens": lambda: rd.split(rd.SplitSettings.read({**given, "model": str(work / "model"), "output": next(outputs)})),
        "tokenizer alone": lambda: tokenizer.encode_batch(texts, add_special_tokens=False),
        "words": lambda: rd.split(rd.SplitSettings.read({**given, "unit": "words", "output": next(outputs)})),
        "split of Python": lambda: [[" ".join(w[at : at + 100]) for at in range(0, len(w), 100)] for w in map(str.split, texts)],
    }
    taken = in_turns(ways, 3, time.process_time)
    pairs = {"tokens": "tokenizer alone", "words": "split of Python"}
    return {f"{ours} / {other}": ratio(taken[ours], taken[other]) for ours, other in pairs.items()}


if __name__ == "__main__":
    main()
