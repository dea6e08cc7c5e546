"""Mining against sentence-transformers' `mine_hard_negatives`: the same vectors, queries and candidates, each in processes of its own.

    PYTHONPATH=tests python benchmarks/hard_negatives.py [--queries 5000] [--passages 100000] [--dimension 256] [--only faiss]

Vectors are random and given to both, so nothing is encoded. `raydense` is `index` (Flat), `search` and `mine`; `faiss` and `torch` are
the two ways of `mine_hard_negatives`, which needs the package `datasets`. Each takes the 8 best of 200 candidates that are not the query's
positive; raydense is always measured. Prints the CPU time of all processes, the seconds of the work with the start of Python and Ray apart, the most memory that the
processes held together without mapped files, which the kernel can take back (sampled), and the share of the negatives that are raydense's.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from turns import Ratio, ratio
from watched import run

_NEGATIVES, _DEPTH = 8, 200


def write(folder: Path, queries: int, passages: int, dimension: int) -> None:
    """Write the vectors, and the artifacts that name them; the positive of query i is passage i, whose vector is near."""
    from embeddings import write_corpus, write_embeddings

    from raydense.data.tables import commit_table
    from raydense.storage import Draft

    random = np.random.default_rng(1)
    vectors = random.standard_normal((passages, dimension), dtype=np.float32)
    asked = vectors[:queries] + random.standard_normal((queries, dimension), dtype=np.float32)
    for each in (vectors, asked):
        each /= np.linalg.norm(each, axis=1, keepdims=True)
    np.save(folder / "passages.npy", vectors)
    np.save(folder / "queries.npy", asked)
    ids = [f"q{i}" for i in range(queries)]
    corpus = write_corpus(folder / "corpus", [f"passage {i}" for i in range(passages)], shard_rows=25_000)
    tables = {
        "queries": pa.table({"query_id": ids, "text": ids}),
        "qrels": pa.table({"query_id": ids, "passage_id": [f"p{i}" for i in range(queries)], "relevance": [1] * queries}),
    }
    made = {}
    for kind, table in tables.items():
        draft = Draft.open(folder / kind, kind, {"of": "hard_negatives"})
        commit_table(draft, f"{kind}.parquet", table)
        made[kind] = draft.finish(len(table))
    write_embeddings(folder / "embeddings", vectors, corpus=corpus.fingerprint)
    write_embeddings(folder / "vectors", asked, queries=made["queries"].fingerprint)


def ours(folder: Path) -> tuple[float, NDArray[np.int64]]:
    """The seconds of `index`, `search` and `mine`, and the negatives int64 [queries, 8]."""
    import raydense as rd
    from raydense.data.tables import read_table
    from raydense.runtime.session import ensure_ray

    ensure_ray()
    for made in ("index", "run", "examples"):  # of an earlier turn
        shutil.rmtree(folder / made, ignore_errors=True)
    start = time.perf_counter()
    at = {name: str(folder / name) for name in ("embeddings", "vectors", "queries", "qrels", "corpus", "index", "run", "examples")}
    rd.index(rd.IndexSettings(kind="faiss", embeddings=at["embeddings"], output=at["index"]))
    rd.search(rd.SearchSettings(index=at["index"], vectors=at["vectors"], queries=at["queries"], k=_DEPTH + 1, output=at["run"]))
    given = {name: at[name] for name in ("run", "corpus", "queries", "qrels")}
    wanted = {"pick": "top", "depth": _DEPTH, "negatives": _NEGATIVES, "output": at["examples"]}
    rd.mine(rd.MineSettings.read({**given, **wanted}))
    taken = time.perf_counter() - start
    return taken, np.array(read_table(at["examples"], "examples")["negatives"].to_pylist())


class Given:
    """What `mine_hard_negatives` asks of a model, answered by vectors that are given."""

    device = "cpu"
    model_card_data = SimpleNamespace(base_model="given")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def encode_document(self, *_: Any, **__: Any) -> NDArray[np.float32]:
        return np.load(self.folder / "passages.npy")

    def encode_query(self, *_: Any, **__: Any) -> NDArray[np.float32]:
        return np.load(self.folder / "queries.npy")

    def get_embedding_dimension(self) -> int:
        return int(self.encode_query().shape[1])

    def similarity(self, queries: Any, passages: Any) -> Any:
        import torch

        return torch.as_tensor(queries) @ torch.as_tensor(passages).T

    def similarity_pairwise(self, queries: Any, passages: Any) -> Any:
        import torch

        return (torch.as_tensor(queries) * torch.as_tensor(passages)).sum(dim=1)


def theirs(folder: Path, use_faiss: bool) -> tuple[float, NDArray[np.int64]]:
    """The seconds of `mine_hard_negatives`, and the negatives int64 [queries, 8]."""
    from datasets import Dataset  # type: ignore[import-untyped, import-not-found, unused-ignore]
    from sentence_transformers.util import mine_hard_negatives

    queries, passages = (len(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("queries", "passages"))
    pairs = Dataset.from_dict({"query": [f"q{i}" for i in range(queries)], "answer": [f"passage {i}" for i in range(queries)]})
    start = time.perf_counter()
    mined = mine_hard_negatives(
        pairs,
        Given(folder),  # type: ignore[arg-type]
        corpus=[f"passage {i}" for i in range(passages)],
        range_max=_DEPTH,
        num_negatives=_NEGATIVES,
        output_format="n-tuple",
        use_faiss=use_faiss,
        verbose=False,
    )
    taken = time.perf_counter() - start
    columns = [[int(text.split()[1]) for text in mined[f"negative_{n}"]] for n in range(1, _NEGATIVES + 1)]
    return taken, np.array(columns).T


def measured(side: str, folder: Path) -> tuple[float, float, float]:
    """The seconds of the work of one side in a process of its own, the CPU seconds, and the most bytes of all of its processes."""
    log = folder / f"{side}.log"
    log.unlink(missing_ok=True)
    watched = run([sys.executable, __file__, "--measure", side, str(folder)], log)
    if watched.status:
        raise SystemExit(f"{side} ended with {watched.status}: {watched.said[-500:]}")
    return float((folder / f"{side}.seconds").read_text()), sum(watched.peaks.cpu.values()), float(watched.peaks.together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"queries": 5_000, "passages": 100_000, "dimension": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="+", choices=["faiss", "torch"], default=["faiss", "torch"], help="beside raydense")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        side, at = given.measure[0], Path(given.measure[1])
        taken, negatives = ours(at) if side == "raydense" else theirs(at, side == "faiss")
        np.save(at / f"{side}.npy", negatives)
        (at / f"{side}.seconds").write_text(str(taken))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.queries, given.passages, given.dimension)
        for side in ("raydense", *given.only):
            taken, cpu, peak = measured(side, Path(folder))
            same = np.mean(np.load(f"{folder}/{side}.npy") == np.load(f"{folder}/raydense.npy"))
            memory = f"at most {peak / 2**20:,.0f} MiB"
            print(f"{side}: {cpu:.1f} s of CPU, {taken:.1f} s of work, {memory}, same negatives {same:.4%}", flush=True)


def small(work: Path) -> dict[str, Ratio]:
    """2,000 queries and 50,000 passages: the seconds of the work, and the memory of all processes, against both ways of `mine_hard_negatives`."""
    import datasets  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: F401

    write(work, 2_000, 50_000, 256)
    sides = ["raydense", "faiss", "torch"]
    turns = [{side: measured(side, work) for side in sides} for _ in range(2)]
    found: dict[str, Ratio] = {}
    for other in sides[1:]:
        for what, number in (("speed", 0), ("memory", 2)):
            ours, others = ([turn[side][number] for turn in turns] for side in ("raydense", other))
            found[f"{what}, raydense / mine_hard_negatives, {other}"] = ratio(ours, others)
    return found


if __name__ == "__main__":
    main()
