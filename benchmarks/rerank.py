"""A re-ranker on one core in float32 and in bf16: pairs a CPU second, what rounding of the scores would do, and RR@10.

    python benchmarks/rerank.py --model RERANKER --run RUN --corpus CORPUS --queries QUERIES --qrels QRELS [--count 200] [--depth 20]

`rounded` has the scores of bf16 as autocast of the last layer gives them, of 8 bits: passages tie, and the corpus's order decides. RR@10 is
over the first queries of the run that have a judgement.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.tokens import Tokens

LAYOUT = Layout(fewest=1, first=1, most=1, gpus=0, cpus=1, per_node=1, threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "run", "corpus", "queries", "qrels"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--depth", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    pairs = first_pairs(given)
    tokens = tokenised(pairs, given)
    right = positives(pairs, given.qrels)
    print(f"{len(pairs):,} pairs of {len(tokens.ids) / len(pairs):.0f} tokens")
    found = {precision: scored(given.model, tokens, precision) for precision in ("fp32", "bf16")}
    rounded = torch.from_numpy(found["bf16"][0]).bfloat16().float().numpy()
    for name, (scores, rate) in {**found, "rounded": (rounded, found["bf16"][1])}.items():
        best = ranked(pairs, scores)
        print(
            f"{name:8} {rate:6.0f} pairs/CPU s, queries with a tie {tied(pairs, scores):6.1%}, RR@10 {reciprocal_rank(right[best], pairs):.4f}"
        )


def first_pairs(given: argparse.Namespace) -> pa.Table:
    """The first `depth` passages of the first `count` judged queries of the run, in its order: query_id, passage_id."""
    run = read_table(given.run, "run", ["query_id", "passage_id", "rank"])
    judged = read_table(given.qrels, "qrels", ["query_id"])["query_id"].unique()
    run = run.filter(pc.and_(pc.less_equal(run["rank"], given.depth), pc.is_in(run["query_id"], judged)))
    some = run["query_id"].unique()[: given.count]
    return run.filter(pc.is_in(run["query_id"], some)).combine_chunks()


def tokenised(pairs: pa.Table, given: argparse.Namespace) -> Tokens:
    store, queries = PassageStore(given.corpus), read_table(given.queries, "queries", ["query_id", "text"])
    texts = dict(zip(*(queries[name].to_pylist() for name in ("query_id", "text")), strict=True))
    asked = [texts[query] for query in pairs["query_id"].to_pylist()]
    return CrossEncoder.load(given.model).tokenize_pairs(asked, store.passages(store.rows_of(pairs["passage_id"])))


def positives(pairs: pa.Table, qrels: str) -> NDArray[np.bool_]:
    """For each pair whether its passage is judged relevant."""
    judged = read_table(qrels, "qrels", ["query_id", "passage_id", "relevance"])
    good = {tuple(row.values())[:2] for row in judged.to_pylist() if row["relevance"] > 0}
    return np.array([(row["query_id"], row["passage_id"]) in good for row in pairs.to_pylist()])


def scored(folder: str, tokens: Tokens, precision: str) -> tuple[NDArray[np.float32], float]:
    """The scores, and pairs a CPU second."""
    device = Device(LAYOUT, 0, precision)
    model: Any = device.place(CrossEncoder.load(folder))
    device.run(tokens.select(np.arange(64)), model.tokenizer.pad_id, model, lambda n: None)
    begun = time.process_time()
    scores, _ = device.run(tokens, model.tokenizer.pad_id, model, lambda n: None)
    return scores, len(scores) / (time.process_time() - begun)


def ranked(pairs: pa.Table, scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """The pairs by query, then score falling; of equal ones the earlier comes first."""
    return np.lexsort((-scores, query_numbers(pairs)))


def query_numbers(pairs: pa.Table) -> NDArray[np.int32]:
    return pc.dictionary_encode(pairs["query_id"].combine_chunks()).indices.to_numpy()


def tied(pairs: pa.Table, scores: NDArray[np.float32]) -> float:
    """The share of queries of which two passages have one score."""
    numbers, order = query_numbers(pairs), ranked(pairs, scores)
    same = (np.diff(scores[order]) == 0) & (np.diff(numbers[order]) == 0)
    return len(np.unique(numbers[order][1:][same])) / (numbers.max() + 1)


def reciprocal_rank(right: NDArray[np.bool_], pairs: pa.Table) -> float:
    """RR@10 of judgements in ranked order."""
    counts = np.bincount(query_numbers(pairs))
    ranks = [np.flatnonzero(some[:10]) for some in np.split(right, np.cumsum(counts)[:-1])]
    return float(np.mean([1 / (at[0] + 1) if len(at) else 0.0 for at in ranks]))


if __name__ == "__main__":
    main()
