"""How many pseudo-labels of a sweep's trials are judged relevant: `python benchmarks/pseudo_labels.py OUT`.

OUT is the output of `raydense run jobs/recipes/pair-sample-thresholds-sweep.yaml`, whose `unlabelled` queries are the training queries of
the sample, so that their judgements are known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from raydense.data.store import PassageStore
from raydense.data.tables import read_table


def main() -> None:
    """A line a trial: its variant and seed, the queries kept of all, the pseudo-positives and the share that is judged relevant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the output of the sweep")
    for file in sorted(parser.parse_args().output.glob("trials/*/trial.json")):
        trial = json.loads(file.read_text())
        data, pseudo = (file.parent / trial["stages"][name] for name in ("data", "pseudo"))
        if (pseudo / "manifest.json").exists():
            print(f"{trial['variant']}, {trial['seed']}: {_counted(data, pseudo)}", flush=True)


def _counted(data: Path, pseudo: Path) -> str:
    store = PassageStore(str(data / "corpus"))
    judged = read_table(data / "qrels" / "train", "qrels").to_pylist()
    relevant = {(one["query_id"], one["passage_id"]) for one in judged if one["relevance"] > 0}
    ids = store.take(np.arange(len(store)), ["passage_id"])["passage_id"].to_pylist()
    examples = read_table(pseudo, "examples").to_pylist()
    pairs = [(one["query_id"], ids[row]) for one in examples for row in one["positives"]]
    right = sum(pair in relevant for pair in pairs) / max(1, len(pairs))
    return f"{len(examples):,} of {len({query for query, _ in relevant}):,} queries, {len(pairs):,} positives, {right:.1%} of them judged relevant"


if __name__ == "__main__":
    main()
