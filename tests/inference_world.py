"""A small corpus, queries, a run and two tiny models on disk, for the tests of inference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.tiny import make_tiny_encoder
from raydense.runtime.processor import cpuinfo, gains_by_bf16
from raydense.storage import Draft

WORDS = [
    "what",
    "causes",
    "the",
    "fever",
    "of",
    "a",
    "red",
    "fox",
    "in",
    "winter",
    "when",
    "rivers",
    "freeze",
    "and",
    "old",
    "bridges",
    "of",
    "stone",
    "carry",
    "no",
    "one",
    "home",
]


def make_corpus(folder: Path, passages: int, shard_rows: int) -> list[str]:
    """A corpus whose passage i is named p<i> and has 1 to 60 words, drawn from a seed; its texts."""
    rng = np.random.default_rng(7)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 61))) for _ in range(passages)]
    writer = CorpusWriter(Draft.open(folder, "corpus", {"test": [passages, shard_rows]}), shard_rows)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(passages)], "title": [""] * passages, "text": texts}))
    writer.finish()
    return texts


def make_retriever(folder: Path, seed: int = 3) -> Path:
    """A tiny encoder with random weights."""
    make_tiny_encoder([" ".join(WORDS)] * 3, folder, seed=seed)
    return folder


def make_reranker(folder: Path, encoder: Path, steep: bool = False) -> Path:
    """A cross-encoder from `encoder` with a head of random weights; a `steep` one tells passages apart by more than `score_error`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = CrossEncoder.load(encoder)
    with torch.no_grad():
        for name, weights in model.named_parameters() if steep else ():
            weights.mul_(
                100 if "classifier.weight" in name else 10 if name.endswith(("value.weight", "attention.output.dense.weight")) else 1
            )
    model.save(folder)
    return folder


def score_error() -> float:
    """What a logit of a steep re-ranker may be off by on this machine, in another batch or against fp32."""
    return 0.08 if gains_by_bf16(cpuinfo()) else 1e-4


def make_queries(folder: Path, queries: int) -> list[str]:
    """Queries named q<i>; their texts."""
    texts = [f"{WORDS[i % len(WORDS)]} {WORDS[(i * 5) % len(WORDS)]}" for i in range(queries)]
    write_table(folder, "queries", pa.table({"query_id": [f"q{i}" for i in range(queries)], "text": texts}))
    return texts


def write_table(folder: Path, kind: str, *parts: pa.Table) -> None:
    """An artifact of `kind` with a file a part."""
    draft = Draft.open(folder, kind, {"test": kind})
    for number, part in enumerate(parts):
        commit_table(draft, f"{kind}-{number:05d}.parquet", part)
    draft.finish(sum(part.num_rows for part in parts))


def file_bytes(folder: Path) -> dict[str, bytes]:
    """The files of an artifact by name, without its manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "manifest.json"}
