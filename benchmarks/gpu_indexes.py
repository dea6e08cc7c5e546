"""Builds the indexes of `gpu.py`'s search rows on the CPU, for its `--folder`: minutes in which no GPU need wait.

PYTHONPATH=tests python benchmarks/gpu_indexes.py FOLDER [--tiny]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from gpu_rows import build_indexes, place_in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    build_indexes(place_in(given.folder, torch.device("cpu"), given.tiny))


if __name__ == "__main__":
    main()
