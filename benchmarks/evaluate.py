"""How long evaluation takes, and how much memory it holds: `python benchmarks/evaluate.py [--hits 1000000 10000000]`.

For each number of hits, writes a run of random passages with 200 hits a query, in files of 2,048 queries as `search` does, whose scores are
rounded so that some are equal, and three judgements a query; then evaluates it in a fresh process. Prints CPU time, wall time, peak memory
and a digest of metrics.json and per_query.parquet: the same inputs must give the same digest, whatever the code. `--keep FOLDER`
keeps the runs there, and reads them again the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mine import peak, write_artifact
from turns import Ratio, in_turns, ratios

import raydense as rd

_HITS, _BLOCK, _PASSAGES = 200, 2_048, 21_000_000


def write(folder: Path, hits: int) -> None:
    """Write a run and its qrels; the run lacks every hundredth judged query."""
    queries = hits // _HITS
    blocks = [(at, min(_BLOCK, queries - at)) for at in range(0, queries, _BLOCK)]
    write_artifact(folder / "run", "run", (_run(at, _found(at, count)) for at, count in blocks))
    write_artifact(folder / "qrels", "qrels", (_judged(at, _found(at, count)) for at, count in blocks))


def _found(first: int, queries: int) -> np.ndarray:
    """The passages of some queries, int64 [queries, hits]."""
    random = np.random.default_rng(first)
    return (random.integers(_PASSAGES, size=(queries, 1)) + np.arange(_HITS) * 104_729) % _PASSAGES


def _run(first: int, found: np.ndarray) -> pa.Table:
    queries, random = len(found), np.random.default_rng(first + 1)
    rank = np.tile(np.arange(1, _HITS + 1, dtype=np.int32), queries)
    score = -np.sort(-random.standard_normal((queries, _HITS)).round(4), axis=1).astype(np.float32)
    query = np.repeat(np.arange(first, first + queries), _HITS)
    table = pa.table({"query_id": _name("q", query), "passage_id": _name("p", found.ravel()), "rank": rank, "score": score.ravel()})
    return table.filter(pa.array(query % 100 != 99))


def _judged(first: int, found: np.ndarray) -> pa.Table:
    judged = found[:, [3, 17, 150]].ravel()
    query = np.repeat(np.arange(first, first + len(found)), 3)
    return pa.table({"query_id": _name("q", query), "passage_id": _name("p", judged), "relevance": np.tile([2, 0, 1], len(found))})


def _name(letter: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(letter, pc.cast(pa.array(numbers), pa.string()), "")


def measure(folder: Path, output: str) -> dict[str, float | str]:
    """Evaluate in this process."""
    start = time.perf_counter()
    report = rd.evaluate(rd.EvaluateSettings(run=[str(folder / "run")], qrels=str(folder / "qrels"), output=output))
    used = getrusage(RUSAGE_SELF)
    written = b"".join(report.file(name).read_bytes() for name in ("metrics.json", "per_query.parquet"))
    return {
        "CPU s": used.ru_utime + used.ru_stime,
        "wall s": time.perf_counter() - start,
        "peak MiB": peak(),
        "digest": hashlib.sha256(written).hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hits", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(Path(given.measure[0]), given.measure[1])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        for hits in given.hits:
            folder = (given.keep or Path(temporary)) / f"hits-{hits}"
            write(folder, hits)
            run = [sys.executable, __file__, "--measure", str(folder), f"{temporary}/report-{hits}"]
            found = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout)
            figures = ", ".join(f"{name} {value if isinstance(value, str) else f'{value:,.1f}'}" for name, value in found.items())
            print(f"{hits:,} hits: {figures}", flush=True)


def small(work: Path) -> dict[str, Ratio]:
    """200,000 hits of 1,000 queries, against ir-measures on data frames of the same files, in CPU seconds."""
    write(work, 200_000)
    outputs, measures = (f"{work}/report-{turn}" for turn in count()), [ir_measures.parse_measure(m) for m in ("RR@10", "nDCG@10", "R@100")]

    def ours() -> None:
        given = {"run": [str(work / "run")], "qrels": str(work / "qrels"), "metrics": ["RR@10", "nDCG@10", "R@100"]}
        rd.evaluate(rd.EvaluateSettings(**given, output=next(outputs)))

    def theirs() -> None:
        run, qrels = (pq.read_table(sorted((work / name).glob("*.parquet"))).to_pandas() for name in ("run", "qrels"))
        names = {"passage_id": "doc_id"}
        ir_measures.calc_aggregate(measures, qrels.rename(columns=names), run.rename(columns=names))

    return ratios(in_turns({"evaluate": ours, "ir-measures": theirs}, 3, time.process_time), "ir-measures")


if __name__ == "__main__":
    main()
