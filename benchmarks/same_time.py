"""A retriever fine-tuned in the time that sentence-transformers takes from the same encoder, on the same cores: which one finds more?

    python benchmarks/same_time.py --input FOLDER --model MINILM --output OUT --peer PYTHON [--steps 240] [--peer-steps 120] [--peer-bf16] \\
        [--cores 0] [--together]

FOLDER is in BEIR's layout; missing splits are drawn. Both begin with the encoder and the training queries, mine hard negatives with it, and train:
`raydense run benchmarks/same_time.yaml`, and the trainer of sentence-transformers with its `mine_hard_negatives`,
MultipleNegativesRankingLoss and the batches without duplicates that its documentation recommends, in fp32, its default, or bf16. Timed is
all of it, from the start of Python to the saved model (what an interrupted run left is made anew), on the processors of `--cores`, one after the other, or with `--together` ours on the first and the peer on the second of two processors, so that other work slows both alike. `--steps` of ours are to be as many as take no
longer than the peer's `--peer-steps`. Then both models, the encoder as it is, BM25, and BM25 fused with each (weights by dev queries) are
measured by the same stages. Choose settings by the table of dev; the one of test is the result. The peer needs the packages `datasets` and `accelerate`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kept import refuse_others

HERE = Path(__file__).parent
MEASURE = """
description: measures the two retrievers
given: {data: data, encoder: encoder, ours: ours, peer: peer, length: 128}
defaults: {corpus: $data/corpus, queries: $data/queries, k: 100}
stages:
  words: {do: index, kind: bm25}
  bm25: {do: search, index: $words}
"""
MODEL = """
  vectors-NAME: {do: encode, model: $NAME, passage_length: $length}
  dense-NAME: {do: index, kind: faiss, embeddings: $vectors-NAME}
  NAME-run: {do: search, index: $dense-NAME, model: $NAME}
  NAME-fused: {do: fuse, run: [$bm25, $NAME-run], qrels: $data/qrels/dev}
"""
REPORT = """
  SPLIT:
    do: evaluate
    run: [peer=$peer-run, BM25=$bm25, zero-shot=$encoder-run, ours=$ours-run, peer + BM25=$peer-fused, ours + BM25=$ours-fused]
    qrels: $data/qrels/SPLIT
    metrics: [nDCG@10, RR@10, R@100]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("input", "model", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, default in (("steps", 240), ("peer-steps", 120), ("batch", 32), ("length", 128), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("rate", "peer-rate"):
        parser.add_argument(f"--{name}", type=float, default=5e-5)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has sentence-transformers with its trainer")
    parser.add_argument("--cores", type=int, nargs="+", default=[0])
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--peer-bf16", action="store_true")
    parser.add_argument("--way", choices=["peer"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in ("input", "model", "output"):
        setattr(given, name, getattr(given, name).resolve())
    if given.way:
        _peer(given)
        return
    if given.together and len(given.cores) < 2:
        raise SystemExit("--together: needs two processors; give --cores 0 1")
    given.output.mkdir(parents=True, exist_ok=True)
    _raydense(["import", "--format", "beir", "--input", given.input, "--output", given.output / "data", "--fill-splits", "--no-strict"])
    _write_pairs(given.output)
    _trained(given)
    _measured(given)


def _raydense(words: list[Any]) -> None:
    subprocess.run([sys.executable, "-m", "raydense", *map(str, words)], check=True)


def _write_pairs(output: Path) -> None:
    """The training queries with a positive each, and the texts of all passages, for the peer."""
    import pyarrow.compute as pc

    from raydense.data.store import PassageStore, full_text
    from raydense.data.tables import read_table

    store = PassageStore(output / "data/corpus")
    texts = full_text(store.slice(0, len(store), ["title", "text"])).to_pylist()
    queries = dict(zip(*(read_table(output / "data/queries", "queries")[name].to_pylist() for name in ("query_id", "text")), strict=True))
    qrels = read_table(output / "data/qrels/train", "qrels")
    qrels = qrels.filter(pc.greater_equal(qrels["relevance"], 1))  # as `mine` takes them
    rows = store.rows_of(qrels["passage_id"].combine_chunks())
    pairs = [(queries[query], texts[row]) for query, row in zip(qrels["query_id"].to_pylist(), rows.tolist(), strict=True)]
    (output / "pairs.json").write_text(json.dumps({"pairs": pairs, "corpus": texts}))


def _trained(given: argparse.Namespace) -> None:
    """Train in both ways, timed; what is there already is kept."""
    flags = [
        f"--{name.replace('_', '-')}={getattr(given, name)}"
        for name in ("input", "model", "output", "peer_steps", "batch", "length", "seed", "peer_rate")
    ]
    flags += ["--peer-bf16"] * given.peer_bf16
    values = {
        "seed": given.seed,
        "data": given.output / "data",
        "encoder": given.model,
        "steps": given.steps,
        "batch": given.batch,
        "rate": given.rate,
        "length": given.length,
    }
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    ways = {
        "ours": [
            sys.executable,
            "-m",
            "raydense",
            "run",
            HERE / "same_time.yaml",
            "--output",
            given.output / "ours",
            *sets,
        ],
        "peer": [given.peer, __file__, "--way", "peer", *flags],
    }
    cores = {way: given.cores[number : number + 1] if given.together else given.cores for number, way in enumerate(ways)}
    own = {"ours": ("steps", "rate"), "peer": ("peer_steps", "peer_rate", "peer_bf16")}
    for way, names in own.items():
        asked = {name: getattr(given, name) for name in ("input", "model", "batch", "length", "seed", "together", *names)}
        refuse_others(given.output / f"{way}-asked.json", {**asked, "cores": cores[way]}, [given.output / f"{way}.json"])
    threads = [threading.Thread(target=_timed, args=(way, command, cores[way], given.output)) for way, command in ways.items()]
    for thread in threads:
        thread.start()
        if not given.together:
            thread.join()
    for thread in threads:
        thread.join()
    if failed := [way for way in ways if not (given.output / f"{way}.json").exists()]:
        raise SystemExit(f"failed: {', '.join(failed)}; see its log in {given.output}")


def _timed(way: str, command: list[Any], cores: list[int], output: Path) -> None:
    from watched import run

    kept = output / f"{way}.json"
    if kept.exists():
        return
    for left in (way, f"{way}-work"):  # ours would go on from there, and the rest alone be timed
        shutil.rmtree(output / left, ignore_errors=True)
    environment = ["env", *(["-u", "PYTHONPATH"] if way == "peer" else []), f"OMP_NUM_THREADS={len(cores)}"]
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *environment, *map(str, command)]
    found = run(pinned, output / f"{way}.log")
    if found.status:
        return
    kept.write_text(json.dumps({"wall": round(found.seconds, 1), "cpu": round(sum(found.peaks.cpu.values()), 1), "cores": cores}))


def _peer(given: argparse.Namespace) -> None:
    """Mine and train as the documentation of sentence-transformers does."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.training_args import BatchSamplers
    from sentence_transformers.util import mine_hard_negatives

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    held = json.loads((given.output / "pairs.json").read_text())
    model = SentenceTransformer(str(given.model), device="cpu")
    model.max_seq_length = given.length
    pairs = Dataset.from_dict({"anchor": [pair[0] for pair in held["pairs"]], "positive": [pair[1] for pair in held["pairs"]]})
    mined = mine_hard_negatives(
        pairs, model, corpus=held["corpus"], range_max=100, num_negatives=1, relative_margin=0.05, sampling_strategy="top", verbose=False
    )
    arguments = SentenceTransformerTrainingArguments(
        str(given.output / "peer-work"), per_device_train_batch_size=given.batch, max_steps=given.peer_steps, learning_rate=given.peer_rate,
        warmup_steps=given.peer_steps // 10, save_strategy="no", report_to=[], seed=given.seed, use_cpu=True, disable_tqdm=True,
        batch_sampler=BatchSamplers.NO_DUPLICATES, bf16=given.peer_bf16,
    )  # fmt: skip
    SentenceTransformerTrainer(model, arguments, mined, loss=MultipleNegativesRankingLoss(model)).train()
    model.save(str(given.output / "peer"))


def _measured(given: argparse.Namespace) -> None:
    """Measure both models on dev and test, and print what each took."""
    recipe = given.output / "measure.yaml"
    models = "".join(MODEL.replace("NAME", name) for name in ("encoder", "ours", "peer"))
    recipe.write_text(MEASURE + models + "".join(REPORT.replace("SPLIT", split) for split in ("dev", "test")))
    folders = {
        "data": given.output / "data",
        "encoder": given.model,
        "ours": given.output / "ours/retriever",
        "peer": given.output / "peer",
    }
    sets = [word for name, value in {**folders, "length": given.length}.items() for word in ("--set", f"{name}={value}")]
    _raydense(["run", recipe, "--output", given.output / "measured", *sets])
    for way in ("peer", "ours"):
        print(way, (given.output / f"{way}.json").read_text())
    for split in ("dev", "test"):
        metrics = json.loads((given.output / f"measured/{split}/metrics.json").read_text())
        print(split, json.dumps(metrics.get("runs", metrics), indent=1)[:4000])


if __name__ == "__main__":
    main()
