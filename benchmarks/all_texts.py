"""Writes one collection.tsv (MS MARCO's form) of the passages of several BEIR folders, to pre-train an encoder on all of them.

    python benchmarks/all_texts.py OUT ../shared/data/cmed-mini-zh ../shared/data/cmrc2018 ../shared/data/drcd ../shared/data/dureader-demo/beir

A passage `7` of the folder `data/drcd` becomes `data-drcd:7`. Titles are left out, since the baselines of DuReader-retrieval have none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    rows = characters = 0
    with (given.out / "collection.tsv").open("w", encoding="utf-8") as sink:
        for folder in given.folders:
            for line in (folder / "corpus.jsonl").open(encoding="utf-8"):
                row = json.loads(line)
                rows, characters = rows + 1, characters + len(row["text"])
                sink.write(f"{folder.resolve().parent.name}-{folder.name}:{row['_id']}\t{' '.join(row['text'].split())}\n")
    print(f"{rows:,} passages, {characters:,} characters")


if __name__ == "__main__":
    main()
