"""Time and memory of filling a shard of a FAISS index, against FAISS's own growing `add`, and the size that was expected.

    python benchmarks/index.py --rows 1000000 --dimension 256 --factories Flat SQfp16 "IVF1024,SQfp16"

Random vectors of length 1, in float16, in files as `encode` writes them. Each shard is filled and written by a fresh process, in the way of
`raydense index` with 1 thread and with `--threads`, and by `index.add` of blocks of 65,536 vectors with one thread, turn by turn. Prints
rows/s (with the write), the most memory that the process held (VmHWM), the file's bytes, the bytes that `plan` shows for file and task.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
from turns import Ratio, in_turns, ratios
from watched import held_at_most

from raydense.retrieval.faiss_fill import fill, train
from raydense.retrieval.faiss_plan import plan_build
from raydense.retrieval.vectors import Vectors
from raydense.runtime.progress import size
from raydense.storage import Draft

_FILE_ROWS = 100_000


def make_vectors(folder: Path, rows: int, dimension: int) -> None:
    """An embeddings artifact in `folder`."""
    draft, rng = Draft.open(folder, "embeddings", {"rows": rows, "dimension": dimension}), np.random.default_rng(0)
    for number, start in enumerate(range(0, rows, _FILE_ROWS)):
        drawn = rng.standard_normal((min(_FILE_ROWS, rows - start), dimension), dtype=np.float32)
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        column = pa.FixedSizeListArray.from_arrays(pa.array(drawn.astype(np.float16).ravel()), dimension)
        table = pa.table({"row": np.arange(start, start + len(drawn)), "embedding": column})

        def write(path: Path, table: pa.Table = table) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        draft.commit(f"embeddings-{number:05d}.arrow", write, len(drawn))
    draft.finish(rows, dimension=dimension, dtype="float16", of="passages", model="m", corpus="c")


def fill_one(vectors: Path, empty: Path, way: str) -> None:
    """Fill and write a shard in this process, and print what it took; `way` is `add` or a number of threads."""
    index, source = faiss.read_index(str(empty)), Vectors(vectors)
    begun = time.monotonic()
    if way == "add":
        faiss.omp_set_num_threads(1)
        for block in source.blocks(0, source.rows):
            index.add(np.ascontiguousarray(block, dtype=np.float32))
    else:
        fill(index, source.rows, lambda: source.blocks(0, source.rows), int(way))
    out = empty.with_name("shard.faiss")
    faiss.write_index(index, str(out))
    seconds = time.monotonic() - begun
    peak = held_at_most()
    print(json.dumps({"rate": source.rows / seconds, "peak": peak, "file": out.stat().st_size}))


def measure(vectors: Path, factory: str, ways: list[str]) -> None:
    """Train an index of `factory`, fill it in each way, and print a line for each."""
    source = Vectors(vectors)
    index = faiss.index_factory(source.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        drawn = np.random.default_rng(1).choice(source.rows, min(source.rows, 50_000), replace=False, shuffle=False)
        train(index, source.take(np.sort(drawn)), os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(dir=vectors.parent) as folder:
        empty = Path(folder) / "empty.faiss"
        faiss.write_index(index, str(empty))
        for way in ways:
            command = [sys.executable, __file__, "--fill", str(vectors), str(empty), way]
            got = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1])
            plan = replace(plan_build(factory, source.dimension, source.rows, 1), threads=1 if way == "add" else int(way))
            expected = f"expected {size(plan.file_bytes[0])}, file / expected {got['file'] / plan.file_bytes[0]:.3f}"
            held = (
                f"held {size(got['peak'])}, {(got['peak'] - 300 * 2**20) / got['file']:.2f} x file + 300 MiB, task {size(plan.task_bytes)}"
            )
            print(f"{factory} {way}: {got['rate']:,.0f} rows/s, {held}, file {size(got['file'])}, {expected}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--factories", nargs="+", default=["Flat", "SQfp16", "SQ8", "IVF1024,Flat", "IVF1024,SQfp16", "RaBitQ,Refine(SQ8)"])
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.fill:
        fill_one(Path(asked.fill[0]), Path(asked.fill[1]), asked.fill[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder) / "vectors"
        make_vectors(vectors, asked.rows, asked.dimension)
        for factory in asked.factories:
            measure(vectors, factory, ["add", "1", str(asked.threads)])


def small(work: Path) -> dict[str, Ratio]:
    """Filling with 100,000 vectors by one thread, against FAISS's own `add`, in CPU seconds."""
    make_vectors(work / "vectors", 100_000, 128)
    source, found = Vectors(work / "vectors"), {}
    faiss.omp_set_num_threads(1)
    for factory in ("Flat", "SQfp16", "SQ8", "IVF256,SQfp16"):
        empty = faiss.index_factory(128, factory, faiss.METRIC_INNER_PRODUCT)
        if not empty.is_trained:
            train(empty, source.take(np.arange(20_000)), 1)

        def ours(empty: faiss.Index = empty) -> None:
            fill(faiss.clone_index(empty), source.rows, lambda: source.blocks(0, source.rows), 1)

        def theirs(empty: faiss.Index = empty) -> None:
            index = faiss.clone_index(empty)
            for block in source.blocks(0, source.rows):
                index.add(np.ascontiguousarray(block, dtype=np.float32))

        taken = in_turns({f"fill {factory}": ours, "FAISS add": theirs}, 4, time.process_time)
        found |= ratios(taken, "FAISS add")
    return found


if __name__ == "__main__":
    main()
