"""FAISS indexes compared by `raydense compare` on made vectors: clusters in a space of fewer dimensions, as embeddings of text have them.

    PYTHONPATH=benchmarks .venv/bin/python benchmarks/indexes.py --rows 201000 --dimension 768

2,000 cluster centres of 96 dimensions, a point around each for each row, mapped at random to all dimensions, a little noise, length 1.
Prints the table; `--factories` and `--threads` as for `raydense compare`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from search import write_embeddings

from raydense.evaluation.table import comparison_table
from raydense.retrieval.compare import compare
from raydense.retrieval.settings import CompareSettings

_CENTRES, _INNER, _SPREAD, _NOISE = 2_000, 96, 0.8, 0.01


def clustered_vectors(rows: int, dimension: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    inner = rng.standard_normal((_CENTRES, _INNER), dtype=np.float32)[rng.integers(0, _CENTRES, rows)]
    inner += _SPREAD * rng.standard_normal((rows, _INNER), dtype=np.float32)
    vectors = inner @ (rng.standard_normal((_INNER, dimension), dtype=np.float32) / np.sqrt(_INNER, dtype=np.float32))
    vectors += _NOISE * rng.standard_normal((rows, dimension), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 201_000, "dimension": 768, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--factories", default=CompareSettings.model_fields["factories"].default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_embeddings(Path(folder) / "embeddings", clustered_vectors(args.rows, args.dimension, 1))
        given = {"embeddings": f"{folder}/embeddings", "factories": args.factories, "threads": args.threads, "output": f"{folder}/report"}
        print(comparison_table(compare(CompareSettings.read(given))))


if __name__ == "__main__":
    main()
