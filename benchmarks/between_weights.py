"""What weights between an encoder's and those of the retriever that was fine-tuned from it are worth: makes a model folder for each share.

`python benchmarks/between_weights.py START FINE_TUNED OUT 0.5 0.75 1.25` makes OUT/0.5 and so on, with (1 - share) START + share FINE_TUNED.
`raydense run benchmarks/between_weights.yaml --output OUT2 --set own=OWN --set models=OUT` measures them, OWN being an output of `own-data`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("start", "fine_tuned", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("shares", nargs="+", metavar="share")
    given = parser.parse_args()
    start, end = (load_file(folder / WEIGHTS) for folder in (given.start, given.fine_tuned))
    for share in given.shares:
        folder = given.out / share
        shutil.copytree(given.fine_tuned, folder, ignore=shutil.ignore_patterns("logs", "history.jsonl", "manifest.json", WEIGHTS))
        between = {name: start[name].lerp(end[name], float(share)) if end[name].is_floating_point() else end[name] for name in end}
        save_file(between, folder / WEIGHTS, {"format": "pt"})


if __name__ == "__main__":
    main()
