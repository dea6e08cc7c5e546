"""Whether a whole system is exact at its size: rows, ids, the nearest passages and metrics, read without raydense.

    python benchmarks/scale_check.py FOLDER [--queries 64]

FOLDER is the `--work` of a `benchmarks/wikipedia_scale.py`; what it has not made yet is left out. Rows are compared with the manifests. The exact search
is compared with products of all vectors and some queries, made here block by block; the recall of the other indexes is taken over all
queries against it, and may be 0.05 from what the index says of passages. The metrics of the report are made again here from the runs and the judgements. Exit code 1 where one check fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

EXACT, INVERTED, WORDS = "run-fp16", ("run-ivf", "run-rabitq"), "run-bm25"
RUNS = (EXACT, *INVERTED, WORDS)
Vectors = NDArray[np.float32]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queries", type=int, default=64, help="how many queries are compared with products of all vectors")
    given = parser.parse_args()
    failed = False
    print("| check | found | |\n| --- | --- | --- |")
    for name, found, right in _checks(given.folder, given.queries):
        print(f"| {name} | {found} | {'yes' if right else 'NO'} |", flush=True)
        failed |= not right
    return int(failed)


def _checks(folder: Path, queries: int) -> Iterator[tuple[str, str, bool]]:
    yield from _rows(folder)
    runs = {name: _run(folder / name) for name in RUNS if _made(folder / name)}
    yield from _ids(folder, runs)
    if EXACT in runs:
        yield _exact(folder, runs[EXACT], queries)
    for name in runs.keys() & INVERTED if EXACT in runs else ():
        asked = _manifest(folder / name.replace("run", "index"))["summary"].get("recall", 0.95)
        recall = _recall(runs[name], runs[EXACT])
        what = f"{name}: recall of the exact first 100, queries; passages of a sample, in the index"
        yield what, f"{recall:.4f}; {asked:.4f}", abs(recall - asked) <= 0.05
    report = json.loads((folder / "report/metrics.json").read_text())["runs"] if _made(folder / "report") else {}
    for name, run in runs.items() if report else ():
        said = report[name.removeprefix("run-")]["metrics"]
        found = _metrics(run, pq.read_table(sorted((folder / "data/qrels/test").glob("*.parquet"))))
        right = all(abs(said[metric] - value) < 1e-6 for metric, value in found.items())
        yield f"{name}: metrics of the report", ", ".join(f"{metric} {value:.4f}" for metric, value in found.items()), right


def _rows(folder: Path) -> Iterator[tuple[str, str, bool]]:
    passages = sum(len(batch["passage_id"]) for batch in _batches(folder / "data/corpus", ["passage_id"]))
    made = [name for name in ("data/corpus", "vectors", *(run.replace("run", "index") for run in RUNS)) if _made(folder / name)]
    right = {_manifest(folder / name)["rows"] for name in made} == {passages}
    yield f"rows of the corpus, counted; in the manifests of {', '.join(made)}", f"{passages:,}", right


def _ids(folder: Path, runs: dict[str, pa.Table]) -> Iterator[tuple[str, str, bool]]:
    """Each id of a run is one of the corpus, and none stands twice with a query."""
    wanted = pc.unique(pa.chunked_array([chunk for run in runs.values() for chunk in run["passage_id"].chunks]))
    found = sum(
        pc.sum(pc.is_in(batch["passage_id"], wanted.cast(batch["passage_id"].type))).as_py()
        for batch in _batches(folder / "data/corpus", ["passage_id"])
    )
    yield "distinct ids in the runs that the corpus has once", f"{found:,} of {len(wanted):,}", found == len(wanted)
    twice = sum(run.num_rows - run.group_by(["query_id", "passage_id"]).aggregate([]).num_rows for run in runs.values())
    yield "passages that a run has twice for a query", str(twice), twice == 0


def _exact(folder: Path, run: pa.Table, queries: int) -> tuple[str, str, bool]:
    """The first 100 by products in float32 with every vector, against the run: equal ids, or scores that differ by less than 1e-5."""
    ids = pc.unique(run["query_id"]).take(pa.array(np.linspace(0, len(pc.unique(run["query_id"])) - 1, queries).astype(np.int64)))
    every = pa.concat_arrays([batch["query_id"].cast(pa.string()) for batch in _batches(folder / "data/queries", ["query_id"])])
    asked = _stacked(folder / "query-vectors")[np.asarray(pc.index_in(ids.cast(pa.string()), every))]
    scores, rows = _nearest(folder / "vectors", asked, 100)
    hits = run.filter(pc.is_in(run["query_id"], ids))
    corpus = pa.concat_arrays([batch["passage_id"].cast(pa.string()) for batch in _batches(folder / "data/corpus", ["passage_id"])])
    equal, apart = 0, 0.0
    for query, best, at in zip(ids, scores, rows, strict=True):
        mine = hits.filter(pc.equal(hits["query_id"], query)).sort_by("rank")
        equal += sum(a == b for a, b in zip(mine["passage_id"].to_pylist(), corpus.take(pa.array(at)).to_pylist(), strict=True))
        apart = max(apart, float(np.abs(np.asarray(mine["score"]) - best).max()))
    share = equal / rows.size
    what = f"{EXACT}: places of {queries} queries with the passage that products of all vectors give; scores apart by at most"
    return what, f"{share:.2%}; {apart:.1e}", share > 0.99 and apart < 1e-5


def _nearest(folder: Path, asked: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
    """Scores and rows of the k largest products, falling, then row rising; [queries, k]."""
    best = np.full((len(asked), k), -np.inf, dtype=np.float32)
    rows = np.full((len(asked), k), -1, dtype=np.int64)
    for first, block in _blocks(folder):
        scores = np.concatenate([best, asked @ block.T], axis=1)
        every = np.concatenate([rows, np.broadcast_to(np.arange(first, first + len(block)), (len(asked), len(block)))], axis=1)
        few = np.argpartition(-scores, 4 * k, axis=1)[:, : 4 * k] if scores.shape[1] > 4 * k else np.argsort(-scores, axis=1)
        scores, every = np.take_along_axis(scores, few, axis=1), np.take_along_axis(every, few, axis=1)
        order = np.lexsort((every, -scores), axis=1)[:, :k]
        best, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(every, order, axis=1)
    return best, rows


def _blocks(folder: Path) -> Iterator[tuple[int, Vectors]]:
    for batch in _batches(folder, ["row", "embedding"]):
        column = batch["embedding"]
        yield batch["row"][0].as_py(), np.asarray(column.flatten()).reshape(len(column), -1).astype(np.float32)


def _stacked(folder: Path) -> Vectors:
    return np.concatenate([block for _, block in _blocks(folder)])


def _recall(run: pa.Table, exact: pa.Table) -> float:
    same = run.select(["query_id", "passage_id"]).join(
        exact.select(["query_id", "passage_id"]), ["query_id", "passage_id"], join_type="inner"
    )
    return same.num_rows / exact.num_rows


def _metrics(run: pa.Table, qrels: pa.Table) -> dict[str, float]:
    """RR@10, nDCG@10 and R@100, the mean over judged queries; judgements are 0 or 1."""
    relevant: dict[str, set[str]] = {}
    for query, passage, grade in zip(*(qrels[name].to_pylist() for name in ("query_id", "passage_id", "relevance")), strict=True):
        if grade > 0:
            relevant.setdefault(query, set()).add(passage)
    ranks: dict[str, list[int]] = {query: [] for query in relevant}
    run = run.sort_by([("query_id", "ascending"), ("score", "descending"), ("passage_id", "descending")])  # as trec_eval orders ties
    starts = np.flatnonzero(np.append(True, pc.not_equal(run["query_id"][1:], run["query_id"][:-1]).to_numpy()))
    places = np.arange(run.num_rows) - np.repeat(starts, np.diff(np.append(starts, run.num_rows))) + 1
    for query, passage, rank in zip(run["query_id"].to_pylist(), run["passage_id"].to_pylist(), places.tolist(), strict=True):
        if passage in relevant.get(query, ()):
            ranks[query].append(rank)
    sums = np.zeros(3)
    for query, found in ranks.items():
        first, best = min(found, default=1_000), sum(1 / np.log2(1 + place) for place in range(1, min(10, len(relevant[query])) + 1))
        gain = sum(1 / np.log2(1 + rank) for rank in found if rank <= 10)
        sums += [1 / first if first <= 10 else 0, gain / best, sum(rank <= 100 for rank in found) / len(relevant[query])]
    return dict(zip(("RR@10", "nDCG@10", "R@100"), (sums / len(ranks)).tolist(), strict=True))


def _run(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(part) for part in sorted(folder.glob("*.parquet"))])


def _batches(folder: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    for part in sorted(folder.glob("*-*.arrow")) + sorted(folder.glob("*.parquet")):
        if part.suffix == ".parquet":
            yield from (dict(zip(columns, batch.columns, strict=True)) for batch in pq.ParquetFile(part).iter_batches(columns=columns))
        else:
            with pa.memory_map(str(part)) as source:
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    yield {name: batch.column(name) for name in columns}


def _made(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
