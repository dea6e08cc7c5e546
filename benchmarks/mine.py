"""How long mining takes, and how much memory it holds: `python benchmarks/mine.py [--queries 10000 50000 200000] [--passages 1000000]`.

Writes a corpus of short passages, and for each number of queries a run of random hits (200 each by default) and one judgement per query;
then mines 8 negatives of each query in a fresh process. Prints CPU time with that of Ray's processes, wall time, the driver's peak memory, that
of all processes together without mapped files and of the largest with them, and a digest of the data files: the same inputs must give
the same digest, whatever the code. `--keep FOLDER` keeps corpus and runs there, and reads them again the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from turns import Ratio, in_turns, ratios
from watched import held_at_most
from watched import run as watched_run

import raydense as rd
from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table
from raydense.storage import Artifact, Draft

_STEP = 10_000


def _names(letter: str, start: int, stop: int) -> pa.Array:
    return pc.binary_join_element_wise(letter, pc.cast(pa.array(np.arange(start, stop)), pa.string()), "")


def write_corpus(folder: Path, passages: int) -> None:
    """Write a corpus of short passages, each with another text."""
    draft = Draft.open(folder, "corpus", {"of": "mine", "passages": passages})
    if draft.done:
        return
    writer = CorpusWriter(draft, 250_000)
    for first in range(0, passages, _STEP):
        ids = _names("p", first, min(first + _STEP, passages))
        text = pc.binary_join_element_wise("passage", ids, "says little", " ")
        writer.add(pa.table({"passage_id": ids, "title": pa.repeat("", len(ids)), "text": text}))
    writer.finish()


def write_run(folder: Path, queries: int, hits: int, passages: int) -> None:
    """Write queries, qrels and a run of random passages."""
    random = np.random.default_rng(1)
    names = _names("q", 0, queries)
    judged = _names("p", 0, passages).take(pa.array(random.integers(passages, size=queries)))
    write_artifact(folder / "queries", "queries", [pa.table({"query_id": names, "text": names})])
    write_artifact(
        folder / "qrels", "qrels", [pa.table({"query_id": names, "passage_id": judged, "relevance": np.ones(queries, np.int32)})]
    )
    write_artifact(folder / "run", "run", (_block(names.slice(at, _STEP), passages, hits, random) for at in range(0, queries, _STEP)))


def _block(queries: pa.Array, passages: int, hits: int, random: np.random.Generator) -> pa.Table:
    found = np.concatenate([random.choice(passages, hits, replace=False, shuffle=False) for _ in range(len(queries))])
    rank = np.tile(np.arange(1, hits + 1, dtype=np.int32), len(queries))
    query = queries.take(pa.array(np.repeat(np.arange(len(queries)), hits)))
    passage = pc.binary_join_element_wise("p", pc.cast(pa.array(found), pa.string()), "")
    return pa.table({"query_id": query, "passage_id": passage, "rank": rank, "score": (-rank).astype(np.float32)})


def write_artifact(folder: Path, kind: str, tables: Iterable[pa.Table]) -> None:
    draft = Draft.open(folder, kind, {"of": "benchmark"})
    if draft.done:
        return
    rows = 0
    for number, table in enumerate(tables):
        commit_table(draft, f"{kind}-{number:05d}.parquet", table)
        rows += len(table)
    draft.finish(rows)


def peak() -> float:
    """The most MiB that this process held."""
    return held_at_most() / 2**20


def measure(corpus: str, folder: Path, output: str) -> dict[str, float | str]:
    """Mine in this process."""
    start = time.perf_counter()
    inputs = {name: str(folder / name) for name in ("run", "queries", "qrels")}
    mined = rd.mine(rd.MineSettings(**inputs, corpus=corpus, negatives=8, output=output))
    times = [each.cpu_times() for each in (psutil.Process(), *psutil.Process().children(recursive=True))]
    return {
        "CPU s": sum(each.user + each.system for each in times),
        "wall s": time.perf_counter() - start,
        "peak MiB": peak(),
        "digest": hashlib.sha256("".join(f"{file.path} {file.sha256}\n" for file in mined.files).encode()).hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, nargs="+", default=[10_000, 50_000, 200_000])
    parser.add_argument("--hits", type=int, default=200)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        corpus, folder, output = given.measure
        print(json.dumps(measure(corpus, Path(folder), output)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        kept = given.keep or Path(temporary)
        corpus = kept / f"corpus-{given.passages}"
        write_corpus(corpus, given.passages)
        for queries in given.queries:
            folder = kept / f"{queries}-{given.hits}-{given.passages}"
            write_run(folder, queries, given.hits, given.passages)
            run = [sys.executable, __file__, "--measure", str(corpus), str(folder), f"{temporary}/examples-{queries}"]
            watched = watched_run(run, Path(temporary) / f"{queries}.log")
            found = json.loads(watched.said.splitlines()[-1])
            found |= {"all processes MiB": watched.peaks.together / 2**20, "largest MiB": watched.peaks.process / 2**20}
            figures = ", ".join(f"{name} {value if isinstance(value, str) else f'{value:,.1f}'}" for name, value in found.items())
            print(f"{queries:,} queries, {Artifact.open(folder / 'run').rows:,} rows of a run: {figures}", flush=True)


def small(work: Path) -> dict[str, Ratio]:
    """A run of 2,000 queries, against a loop in Python over the same files, in CPU seconds."""
    write_corpus(work / "corpus", 100_000)
    write_run(work, 2_000, 200, 100_000)
    given, outputs = {name: str(work / name) for name in ("run", "queries", "qrels", "corpus")}, (f"{work}/out-{turn}" for turn in count())

    def bare() -> None:
        judged = dict(
            pq.read_table(work / "qrels/qrels-00000.parquet", columns=["query_id", "passage_id"]).to_pandas().itertuples(index=False)
        )
        random, rows = np.random.default_rng(1), []
        for query, hits in (
            pq.read_table(sorted((work / "run").glob("*.parquet")), columns=["query_id", "passage_id"])
            .to_pandas()
            .groupby("query_id")["passage_id"]
        ):
            candidates = [passage for passage in hits if passage != judged[query]]
            rows.append(
                {"query": query, "positives": [judged[query]], "negatives": [candidates[i] for i in random.choice(len(candidates), 8)]}
            )
        pq.write_table(pa.Table.from_pylist(rows), f"{next(outputs)}.parquet")

    ways = {"mine": lambda: rd.mine(rd.MineSettings(**given, negatives=8, output=next(outputs))), "a loop in Python": bare}
    return ratios(in_turns(ways, 4, time.process_time), "a loop in Python")


if __name__ == "__main__":
    main()
