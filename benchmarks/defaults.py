"""README's own-data chain on a part of a BEIR folder with a given encoder, but that `train` has its defaults.

    python benchmarks/defaults.py --input ../shared/data/scifact --model MODEL_DIR --output OUT [--passages 1000]

The part has all judged passages, and others from the start of the corpus up to the count. Compared are BM25, the encoder as it is (zero-shot),
and the encoder trained on BM25's hard negatives. Run again, it continues; the last lines are `evaluate`'s table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

CHAIN = """
import   --format beir --input part --fill-splits --output data
index    --kind bm25 --corpus data/corpus --output ix/bm25
search   --index ix/bm25 --queries data/queries --k 100 --output runs/bm25
mine     --run runs/bm25 --corpus data/corpus --queries data/queries --qrels data/qrels/train --negatives 8 --output ex
train    --objective retriever --model MODEL --corpus data/corpus --queries data/queries --examples ex --dev.qrels data/qrels/dev --dev.run runs/bm25 --output model
encode   --model MODEL --corpus data/corpus --output emb-0
encode   --model model --corpus data/corpus --output emb
index    --kind faiss --factory Flat --shards 4 --embeddings emb-0 --output ix/zero-shot
index    --kind faiss --factory Flat --shards 4 --embeddings emb --output ix/dense
search   --index ix/zero-shot --model MODEL --queries data/queries --k 100 --output runs/zero-shot
search   --index ix/dense --model model --queries data/queries --k 100 --output runs/dense
evaluate --run runs/bm25 --run runs/zero-shot --run runs/dense --qrels data/qrels/test --output report
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("input", "model", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=1000)
    given = parser.parse_args()
    write_part(given.input, given.output / "part", given.passages)
    for line in CHAIN.strip().splitlines():
        words = [str(given.model.resolve()) if word == "MODEL" else word for word in line.split()]
        subprocess.run([sys.executable, "-m", "raydense", *words], cwd=given.output, check=True)


def write_part(source: Path, part: Path, passages: int) -> None:
    """The queries and judgements of a BEIR folder, and `passages` of its passages: the judged ones, all of them, then the first others."""
    part.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source / "qrels", part / "qrels", dirs_exist_ok=True)
    shutil.copy(source / "queries.jsonl", part)
    judged = {line.split("\t")[1] for file in part.glob("qrels/*.tsv") for line in file.read_text().splitlines()[1:]}
    with open(source / "corpus.jsonl", encoding="utf-8") as corpus:  # splitlines would cut at U+2028, too
        lines = list(corpus)
    others = [line for line in lines if json.loads(line)["_id"] not in judged]
    (part / "corpus.jsonl").write_text(
        "".join([line for line in lines if json.loads(line)["_id"] in judged] + others[: max(0, passages - len(judged))])
    )


if __name__ == "__main__":
    main()
