"""The whole system at a number of passages: each stage as a user starts it, its rate, memory, disk, and what a kill at half costs.

    python benchmarks/wikipedia_scale.py --passages 21015324 --work FOLDER [--kill] [--only encode ...]
    python benchmarks/wikipedia_scale.py --table FOLDER

It makes a sample of N passages with 58,812 training and 3,610 test queries (as many as Natural Questions has), splits it, encodes it
with a static encoder of 256 dimensions, makes indexes, searches them, mines and evaluates. A stage that is done is kept:
the same command continues, in as many sittings as needed; the seconds of a sitting that is itself killed count, its memory does not. Another
number of passages wants another folder. With `--kill` each long stage is made a second time, killed with all of its
processes when half of its bytes are there, continued, and compared with the first, file by file.
FOLDER/measured.json has a row for each stage; the table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kept import refuse_others
from same_bytes import data_files
from turns import Ratio, ratio
from watched import Watched, run

TEST, TRAIN, DEV = 3_610, 58_812, 300
DIMENSION, DEPTH, K = 256, 200, 100
RAYDENSE = [sys.executable, "-m", "raydense"]
OPEN = """
import sys, time
from raydense.storage import Artifact
kind, folder = sys.argv[1:]
begun = time.perf_counter()
artifact = Artifact.open(folder, kind)
if kind == "corpus":
    from raydense.data.store import PassageStore
    store = PassageStore(folder)
    store.take([len(store) - 1])
elif kind == "embeddings":
    from raydense.retrieval.vectors import Vectors
    Vectors(folder, artifact.summary["of"])
elif kind == "index":
    from raydense.retrieval.faiss_shard import open_index
    shards = range(len(artifact.summary["shards"])) if artifact.summary["kind"] == "faiss" else ()
    opened = [open_index(artifact.file(f"shard-{shard:05d}.faiss")) for shard in shards]
print(time.perf_counter() - begun)
"""


@dataclass(frozen=True)
class Stage:
    """A command, what it makes, the kind of that, and the number of things that it works on."""

    name: str
    words: list[str]
    output: Path
    kind: str
    things: int
    unit: str
    long: bool = False


def main() -> None:
    given = _arguments()
    if given.table:
        print(_table(_done(given.table)))
        return
    refuse_others(given.work / "asked.json", {"passages": given.passages}, [given.work / "measured.json"])
    for stage in _stages(given.passages, given.work):
        if not given.only or stage.name in given.only:
            _measure(stage, given.work, given.kill)
    print(_table(_done(given.work)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, help="the folder of everything; about 3 KB a passage")
    parser.add_argument("--kill", action="store_true", help="also kill each long stage at half, continue it, and compare")
    parser.add_argument("--only", nargs="*", help="names of stages")
    parser.add_argument("--table", type=Path, help="print what was measured in a folder, and measure nothing")
    given = parser.parse_args()
    if not given.table and not given.work:
        parser.error("--work names the folder")
    return given


def _stages(passages: int, work: Path) -> Iterator[Stage]:
    def verb(name: str, do: str, output: str, kind: str, things: int, unit: str, long: bool = False, /, **values: object) -> Stage:
        words = [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]
        return Stage(name, [*RAYDENSE, do, *words, "--output", str(work / output)], work / output, kind, things, unit, long)

    tenth, shard = passages // 10, max(25_000, passages // 200)
    data, queries, encoder = work / "data", work / "data/queries", work / "encoder"
    asked = {"train_queries": TRAIN, "dev_queries": DEV, "test_queries": TEST}
    yield verb("sample", "sample", "data", "dataset", passages, "passages", passages=passages, shard_rows=shard, **asked)
    yield verb("sample of a tenth", "sample", "tenth", "dataset", tenth, "passages", passages=tenth, **dict.fromkeys(asked, 100))
    yield Stage("encoder", [sys.executable, __file__, "--encoder", str(work)], encoder, "model", 200_000, "texts")
    yield verb(
        "split by words", "split", "words", "corpus", passages, "documents", True, corpus=data / "corpus", unit="words", shard_rows=shard
    )
    yield verb("split by tokens", "split", "tokens", "corpus", tenth, "documents", True, corpus=work / "tenth/corpus", model=encoder)
    yield verb("encode", "encode", "vectors", "embeddings", passages, "passages", True, model=encoder, corpus=data / "corpus")
    yield verb("encode queries", "encode", "query-vectors", "embeddings", TEST + TRAIN + DEV, "queries", model=encoder, queries=queries)
    lists = 2 ** max(4, int(np.log2(np.sqrt(passages))))
    for name, factory in _factories(lists).items():
        values = {"kind": "faiss", "embeddings": work / "vectors", "factory": factory}
        yield verb(f"index {name}", "index", f"index-{name}", "index", passages, "vectors", True, **values)
    yield verb("index bm25", "index", "index-bm25", "index", passages, "passages", True, kind="bm25", corpus=data / "corpus")
    test, train = {"qrels": data / "qrels/test"}, {"qrels": data / "qrels/train"}
    for name in [*_factories(lists), "bm25"]:
        how = {} if name == "bm25" else {"vectors": work / "query-vectors"}
        yield verb(
            f"search {name}",
            "search",
            f"run-{name}",
            "run",
            TEST,
            "queries",
            index=work / f"index-{name}",
            queries=queries,
            k=K,
            **how,
            **test,
        )
    # the nprobe that finds 0.95 of the exact is most of the lists of this corpus, whose words are drawn at random; negatives need less
    how = {"index": work / "index-ivf", "vectors": work / "query-vectors", "search_params": f"nprobe={max(4, lists // 64)}"}
    yield verb("search to mine", "search", "run-train", "run", TRAIN, "queries", True, queries=queries, k=DEPTH, **how, **train)
    mined = {"run": work / "run-train", "corpus": data / "corpus", "queries": queries, "negatives": 8, "depth": DEPTH}
    yield verb("mine", "mine", "examples", "examples", TRAIN, "queries", True, **mined, **train)
    runs = [f"{name}={work / f'run-{name}'}" for name in [*_factories(lists), "bm25"]]
    yield verb("evaluate", "evaluate", "report", "report", TEST, "queries", run=" ".join(runs), metrics="RR@10 nDCG@10 R@100", **test)


def _factories(lists: int) -> dict[str, str]:
    """The indexes that are made: exact in half precision, inverted lists, and compressed with re-scoring."""
    return {"fp16": "SQfp16", "ivf": f"IVF{lists},SQfp16", "rabitq": f"IVF{lists},RaBitQ,Refine(SQ8)"}


def _measure(stage: Stage, work: Path, kill: bool) -> None:
    rows = _rows(work)
    row = rows.get(stage.name, {"stage": stage.name, "things": stage.things, "unit": stage.unit, "seconds": 0.0, "sittings": 0})
    if "done" not in row:
        print(f"{stage.name}: {' '.join(stage.words)}", flush=True)
        watched = _sitting(stage, work, row)
        row |= _larger(row, watched)
        if watched.status:
            _keep(work, stage.name, row)
            sys.exit(f"{stage.name} ended with {watched.status}:\n{watched.said[-2_000:]}")
        row |= {"done": True, "bytes": _size(stage.output), "files": sum(f.is_file() for f in stage.output.rglob("*"))}
        row["open_s"] = _opened(stage)
        _keep(work, stage.name, row)
    if kill and stage.long and "killed" not in row:
        row["killed"] = _killed(stage, work)
        _keep(work, stage.name, row)


def _sitting(stage: Stage, work: Path, row: dict[str, Any]) -> Watched:
    """Run the stage; its seconds are kept while it runs, so that they count if this script is killed."""
    before, begun = row["seconds"], time.perf_counter()
    row["sittings"] += 1

    def keep() -> bool:
        row["seconds"] = before + time.perf_counter() - begun
        _keep(work, stage.name, row)
        return False

    watched = run(stage.words, work / "log", keep)
    row["seconds"] = before + watched.seconds
    return watched


def _larger(row: dict[str, Any], watched: Watched) -> dict[str, Any]:
    """The peaks of all sittings."""
    now, before = watched.peaks.facts(), row.get("peaks", {})
    processes = now.pop("processes")
    found = {key: max(value, before.get(key, 0)) for key, value in now.items()}
    old = before.get("processes", {})
    return {"peaks": found | {"processes": {name: max(processes.get(name, 0), old.get(name, 0)) for name in processes.keys() | old.keys()}}}


def _killed(stage: Stage, work: Path) -> dict[str, Any]:
    """Make the stage again elsewhere, kill it at half of its bytes, continue it, and compare the files with the first ones.

    A short one may be done before it is seen to be at half, which shows nothing.
    """
    again, half = work / "killed", _size(stage.output) / 2
    shutil.rmtree(again, ignore_errors=True)
    words = [*stage.words[:-1], str(again)]
    first = run(words, work / "log", lambda: _size(again) >= half)
    if first.status >= 0 or (again / "manifest.json").exists():
        shutil.rmtree(again, ignore_errors=True)
        return {"ended_before": True}
    left = _size(again)
    second = run(words, work / "log")
    if second.status:
        sys.exit(f"{stage.name} did not go on after a kill: {second.said[-2_000:]}")
    equal = data_files(again) == data_files(stage.output)
    shutil.rmtree(again)
    return {"killed_after_s": first.seconds, "there": left, "resumed_s": second.seconds, "equal": equal}


def _opened(stage: Stage) -> float | None:
    """Seconds in which a fresh process opens what was made."""
    if stage.kind in ("dataset", "model", "report"):
        return None
    done = subprocess.run([sys.executable, "-c", OPEN, stage.kind, str(stage.output)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _size(folder: Path) -> int:
    total = 0
    for inside, _, names in os.walk(folder):  # which passes over a folder that was just removed
        for name in names:
            with suppress(OSError):  # a part that was just renamed
                total += os.path.getsize(os.path.join(inside, name))
    return total


def _rows(work: Path) -> dict[str, dict[str, Any]]:
    file = work / "measured.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _done(work: Path) -> dict[str, dict[str, Any]]:
    return {name: row for name, row in _rows(work).items() if "done" in row}


def _keep(work: Path, name: str, row: dict[str, Any]) -> None:
    rows = _rows(work) | {name: row}
    (work / "measured.json.part").write_text(json.dumps(rows, indent=1))
    (work / "measured.json.part").rename(work / "measured.json")


def _table(rows: dict[str, dict[str, Any]]) -> str:
    heads = [
        "stage",
        "seconds",
        "a second",
        "largest process",
        "all processes",
        "object store",
        "spilled",
        "disk",
        "files",
        "opens in",
        "killed at half",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, row in rows.items():
        peaks = row["peaks"]
        largest = max(peaks["processes"], key=peaks["processes"].get, default="")
        cells = [name, f"{row['seconds']:,.0f}", f"{row['things'] / row['seconds']:,.0f} {row['unit']}"]
        cells += [f"{_gib(peaks['process'])} ({largest})", _gib(peaks["together"]), _gib(peaks["object_store"]), _gib(peaks["spilled"])]
        cells += [
            _gib(row.get("bytes", 0)),
            str(row.get("files", "")),
            f"{row['open_s']:.2f} s" if row.get("open_s") is not None else "",
            _continued(row.get("killed")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(f"| all | {sum(row['seconds'] for row in rows.values()):,.0f} |" + " |" * (len(heads) - 2))
    return "\n".join(lines)


def _continued(killed: dict[str, Any] | None) -> str:
    if not killed:
        return ""
    if "ended_before" in killed:
        return "ended before"
    return f"resumed in {killed['resumed_s']:.0f} s, {'equal' if killed['equal'] else 'DIFFERS'}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def make_encoder(work: Path) -> None:
    """A static encoder: a random vector for each piece of a vocabulary made from the corpus, weighted by rarity, which is a random
    projection of the words of a text. Real in every respect but training."""
    import torch

    from raydense.data.store import PassageStore
    from raydense.models.dual_encoder import DualEncoder
    from raydense.models.encoder import Encoder, save_alone
    from raydense.models.encoder_config import EncoderConfig
    from raydense.models.modules.normalize import Normalize
    from raydense.models.modules.static_embedding import StaticEmbedding, distilled
    from raydense.models.tiny import make_tiny_encoder
    from raydense.storage import Draft

    draft = Draft.open(str(work / "encoder"), "model", {"stage": "static", "settings": {"dimension": DIMENSION}, "inputs": {}})
    if draft.done:
        return
    store = PassageStore(work / "data/corpus")
    some = np.unique(np.linspace(0, len(store) - 1, 200_000).astype(np.int64))
    make_tiny_encoder(store.passages(some), work / "vocabulary", seed=1)
    source = DualEncoder.load(work / "vocabulary").tokenizer.passage_source
    table = distilled(np.random.default_rng(1).normal(size=(len(source), DIMENSION)).astype(np.float32), DIMENSION)
    config = EncoderConfig(normalize=True, query_length=512, passage_length=512)
    parts = [StaticEmbedding(torch.from_numpy(table)), Normalize(DIMENSION)]
    draft.commit_tree(lambda folder: save_alone(Encoder(parts, config), source, folder))
    draft.finish(0, dimension=DIMENSION)


def small(work: Path) -> dict[str, Ratio]:
    """Some stages at 10,000 passages, against as many starts of Python and Ray without work; and the same for the largest process."""
    some = ("sample", "encoder", "encode", "encode queries", "index fp16", "index bm25", "search fp16", "search bm25")
    stages = [stage for stage in _stages(10_000, work) if stage.name in some]
    idle = [sys.executable, "-c", "from raydense.runtime.session import ensure_ray; ensure_ray()"]
    bare = [run(idle, work / "log") for _ in range(3)]
    for stage in stages:
        _measure(stage, work, False)
    rows = _rows(work)
    taken = {
        "seconds": [sum(row["seconds"] for row in rows.values()) / len(rows)],
        "largest process": [max(r["peaks"]["process"] for r in rows.values())],
    }
    starts = {"seconds": [each.seconds for each in bare], "largest process": [each.peaks.process for each in bare]}
    return {f"{what} / starts of Ray": ratio(taken[what], starts[what]) for what in taken}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--encoder"]:
        make_encoder(Path(sys.argv[2]))
    else:
        begun = time.perf_counter()
        main()
        print(f"this sitting: {time.perf_counter() - begun:,.0f} s", file=sys.stderr)
