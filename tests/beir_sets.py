"""Writes small BEIR folders, whose words are those that a tiny encoder knows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
from inference_world import WORDS


def make_set(
    folder: Path, seed: int = 1, passages: int = 30, queries: int = 8, splits: tuple[str, ...] = ("test",), packed: bool = False
) -> Path:
    """A set of random texts with grades 0 to 3; the first query is a passage too, of the same id."""
    rng = np.random.default_rng(seed)
    texts = {f"d{i}": " ".join(rng.choice(WORDS, rng.integers(3, 30))) for i in range(passages)}
    asked = {f"q{i}": " ".join(rng.choice(WORDS, 4)) for i in range(queries)}
    texts["q0"] = asked["q0"]
    (folder / "qrels").mkdir(parents=True)
    corpus = "".join(json.dumps({"_id": name, "title": "", "text": text, "metadata": {}}) + "\n" for name, text in texts.items())
    if packed:
        (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.encode()))
    else:
        (folder / "corpus.jsonl").write_text(corpus)
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in asked.items()))
    for split in splits:
        judged = [(q, f"d{d}", rng.integers(0, 4)) for q in asked for d in rng.choice(passages, 6, replace=False)]
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
