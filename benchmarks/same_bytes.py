"""Compares the data files of two runs of a recipe: the same code, settings and seed must write the same bytes.

    raydense demo --output before          # the code of before
    raydense demo --output after           # the code of now, on the same machine
    python benchmarks/same_bytes.py before after

Data files are embeddings, indexes, runs, examples, corpora and weights. Manifests, reports and logs name times and settings, and
are not compared. Exit code 1 where a file differs, or is in one of the two only.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from pathlib import Path

DATA = {".arrow", ".parquet", ".npy", ".faiss", ".safetensors", ".bin"}


def data_files(output: Path) -> dict[str, str]:
    """The sha256 of each data file below a folder, by its path from there."""
    found = (file for file in sorted(output.rglob("*")) if file.is_file() and file.suffix in DATA)
    return {file.relative_to(output).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    given = parser.parse_args()
    before, after = data_files(given.before), data_files(given.after)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            where = "differs" if name in before and name in after else f"only in {given.before if name in before else given.after}"
            print(f"{name}: {where}")
    equal = Counter(Path(name).suffix for name in before.keys() & after.keys() if before[name] == after[name])
    print(f"{equal.total()} of {len(before.keys() | after.keys())} data files are equal: {dict(sorted(equal.items()))}")
    return 0 if before and before == after else 1


if __name__ == "__main__":
    sys.exit(main())
