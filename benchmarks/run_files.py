"""How long a TREC run takes to import and to export, and how much memory: `python benchmarks/run_files.py [--lines 1000000 10000000]`.

Writes a run of random passages with 200 lines a query, whose scores fall and are equal in pairs; imports it in a fresh process, and exports
it in another. Prints CPU time, peak memory and a digest of the data file and of the exported lines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from turns import Ratio, Way, in_turns, ratios
from watched import held_at_most

import raydense as rd

_HITS, _BLOCK, _PASSAGES = 200, 2_048, 21_000_000


def write(path: Path, lines: int) -> None:
    """Write a run of `lines` lines."""
    options = pa.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    with open(path, "wb") as stream:
        for first in range(0, lines // _HITS, _BLOCK):
            queries = min(_BLOCK, lines // _HITS - first)
            passages = np.random.default_rng(first).integers(_PASSAGES, size=(queries, 1)) + np.arange(_HITS) * 104_729
            columns = {"query": _name("q", np.repeat(np.arange(first, first + queries), _HITS)), "q0": pa.repeat("Q0", queries * _HITS)}
            columns["passage"] = _name("p", (passages % _PASSAGES).ravel())
            columns["rank"] = pa.array(np.tile(np.arange(1, _HITS + 1), queries))
            columns["score"] = pa.array(np.tile((_HITS - np.arange(_HITS)) // 2 / 8, queries))
            pa.csv.write_csv(pa.table({**columns, "tag": pa.repeat("tag", queries * _HITS)}), stream, options)


def _name(letter: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(letter, pc.cast(pa.array(numbers), pa.string()), "")


def measure(verb: str, source: str, output: str) -> dict[str, float | str]:
    """Import or export in this process."""
    start = time.perf_counter()
    work: dict[str, Callable[[], object]] = {
        "import": lambda: rd.import_dataset(rd.ImportSettings(format="trec", input=source, output=output)),
        "export": lambda: rd.export(rd.ExportSettings(format="trec", run=source, output=output)),
    }
    work[verb]()
    used = getrusage(RUSAGE_SELF)
    made = Path(output) / "run" / "run.parquet" if verb == "import" else Path(output)
    with open(made, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    peak = held_at_most() / 2**20
    return {"CPU s": used.ru_utime + used.ru_stime, "wall s": time.perf_counter() - start, "peak MiB": peak, "digest": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(*given.measure)))
        return
    for lines in given.lines:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "a.run", lines)
            for verb, source, output in (("import", "a.run", "imported"), ("export", "imported/run", "again.trec")):
                run = [sys.executable, __file__, "--measure", verb, f"{folder}/{source}", f"{folder}/{output}"]
                found = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout)
                figures = ", ".join(f"{name} {value if isinstance(value, str) else f'{value:,.1f}'}" for name, value in found.items())
                print(f"{lines:,} lines, {verb}: {figures}", flush=True)


def small(work: Path) -> dict[str, Ratio]:
    """200,000 lines, against pandas, which checks nothing, in CPU seconds."""
    write(work / "a.run", 200_000)
    names, outputs = ["query_id", "q0", "passage_id", "rank", "score", "tag"], (f"{work}/out-{turn}" for turn in count())
    run = str(rd.import_dataset(rd.ImportSettings(format="trec", input=f"{work}/a.run", output=f"{work}/imported")).place.path / "run")

    def imported() -> None:
        rd.import_dataset(rd.ImportSettings(format="trec", input=f"{work}/a.run", output=next(outputs)))

    def read() -> pd.DataFrame:
        return pd.read_csv(work / "a.run", sep=" ", names=names)

    table = read()
    ways = in_turns({"import": imported, "pandas": lambda: read().to_parquet(next(outputs))}, 4, time.process_time)
    exported: dict[str, Way] = {"export": lambda: rd.export(rd.ExportSettings(format="trec", run=run, output=next(outputs)))}
    exported["pandas, to a file"] = lambda: table.to_csv(next(outputs), sep=" ", header=False, index=False)
    return ratios(ways, "pandas") | ratios(in_turns(exported, 3, time.process_time), "pandas, to a file")


if __name__ == "__main__":
    main()
