"""What a re-ranker learns of a small corpus in which some passages are relevant to test queries alone, and in training are negatives only.

    python benchmarks/only_negatives.py --train QRELS --test QRELS --corpus CORPUS [--examples EXAMPLES ...] [--runs RUN ...] [--depth 20]

Printed for each EXAMPLES: the share of its negatives that only test queries have as positives, and how often each of those is one. For each RUN: how often, among
the first `depth` passages of a query, a positive of training is above one that is relevant to other test queries; nDCG@10 of these passages as they are
ordered and in random order; and both without the positives of training.
"""

from __future__ import annotations

import argparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.store import PassageStore
from raydense.data.tables import positives_of, read_table

DISCOUNTS = 1 / np.log2(np.arange(2, 12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "test", "corpus"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--examples", nargs="*", default=[])
    parser.add_argument("--runs", nargs="*", default=[])
    parser.add_argument("--depth", type=int, default=20)
    given = parser.parse_args()
    relevant = relevant_of(given.test)
    train = set().union(*relevant_of(given.train).values())
    test = set().union(*relevant.values()) - train
    print(f"{len(train):,} positives of training, {len(test):,} of test queries alone")
    rows = PassageStore(given.corpus).rows_of(pa.chunked_array([sorted(test)]))
    for folder in given.examples:
        negatives = pc.list_flatten(read_table(folder, "examples", ["negatives"])["negatives"]).to_numpy()
        found = int(np.isin(negatives, rows).sum())
        print(f"{folder}: {found / len(negatives):.3f} of {len(negatives):,} negatives, each {found / len(test):.1f} times")
    for folder in given.runs:
        show(folder, lists_of(folder, given.depth), relevant, train, test)


def relevant_of(qrels: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    judged = positives_of(read_table(qrels, "qrels"))
    for query, passage in zip(judged["query_id"].to_pylist(), judged["passage_id"].to_pylist(), strict=True):
        found.setdefault(query, set()).add(passage)
    return found


def lists_of(run: str, depth: int) -> dict[str, list[str]]:
    """The first passages of each query, in the order of the run."""
    table = read_table(run, "run", ["query_id", "passage_id", "rank"])
    table = table.filter(pc.less_equal(table["rank"], depth)).sort_by([("query_id", "ascending"), ("rank", "ascending")])
    found: dict[str, list[str]] = {}
    for query, passage in zip(table["query_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True):
        found.setdefault(query, []).append(passage)
    return found


def show(name: str, lists: dict[str, list[str]], relevant: dict[str, set[str]], train: set[str], test: set[str]) -> None:
    above = []
    for query, passages in lists.items():
        not_relevant = test - relevant.get(query, set())
        of_train = [rank for rank, passage in enumerate(passages) if passage in train]
        others = [rank for rank, passage in enumerate(passages) if passage in not_relevant]
        if of_train and others:
            above.append(np.mean(np.array(of_train)[:, None] < np.array(others)))
    without = {query: [passage for passage in passages if passage not in train] for query, passages in lists.items()}
    values = ", ".join(f"{ndcg(some, relevant):.4f} (random {ndcg(shuffled(some), relevant):.4f})" for some in (lists, without))
    print(f"{name}: positives of training above others {np.mean(above):.3f}; nDCG@10, and without positives of training: {values}")


def shuffled(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    rng = np.random.default_rng(1)
    return {query: [passages[at] for at in rng.permutation(len(passages))] for query, passages in lists.items()}


def ndcg(lists: dict[str, list[str]], relevant: dict[str, set[str]]) -> float:
    """The mean over all judged queries; every relevant passage counts the same."""
    values = []
    for query, good in relevant.items():
        gains = np.array([passage in good for passage in lists.get(query, [])[:10]], float)
        values.append(gains @ DISCOUNTS[: len(gains)] / DISCOUNTS[: len(good)].sum())
    return float(np.mean(values))


if __name__ == "__main__":
    main()
