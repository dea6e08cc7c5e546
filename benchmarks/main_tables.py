"""The papers' main table on several data sets from one encoder, by the protocol of docs/benchmarks/quality.md: many at once on one GPU.

    python benchmarks/main_tables.py --input FOLDER ... --model MINILM --output OUT [--seeds 1 2 3] [--at-once 12] [--most 500] [--seconds 570]

FOLDER is in BEIR's layout; missing splits are drawn. First the plain baseline (`main_tables_dpr.yaml`) trains with seed 1 and each learning
rate of `--rates` until its dev metric is flat, at most `--most` steps: the rate that is best on dev, and the step of its best measurement, are those of
all retrievers of this folder. Then `main_tables.yaml`, the recipe `main-table-medquad` without the rows of `main_tables_ance.yaml`, and that one run for each seed; the
re-ranker has 300 and 600 steps. Each is a process with a Ray of its own, `--at-once` of them share the machine. After `--seconds` all are stopped;
the same command goes on from there. Where the re-ranker is so unsure that no unlabelled query has a pseudo-positive, the limit `s_pos` goes from 0.9
to 0.7 to 0.5; OUT/NAME/seed-N.json tells which it was. OUT/NAME/report-N has the rows that are there. OUT of another model, folder, `--most` or `--rates`
is refused. Exits with 1, and names it, if a run failed; not where the time was over.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kept import refuse_others

HERE = Path(__file__).resolve().parent
ROWS = {
    "DPR": "found-dpr",
    "BM25": "bm25-test",
    "zero-shot": "zero-shot",
    "ANCE": "found-ance",
    "RocketQA": "found-rocketqa",
    "PAIR": "found-pair",
    "RocketQAv2": "found-joint",
    "BM25 + re-ranker": "bm25-reranked",
    "BM25 + joint re-ranker": "bm25-joint",
    "BM25 + re-ranker trained as long": "bm25-longer",
    "RocketQA + re-ranker": "rocketqa-reranked",
    "RocketQA + joint re-ranker": "rocketqa-joint",
    "RocketQAv2 + re-ranker": "joint-reranked",
    "RocketQAv2 + joint re-ranker": "joint-joint",
}
S_POS = (0.9, 0.7, 0.5)
EVERY = 50  # steps between two measurements on dev


class Runs:
    """Runs of recipes, a process each, until the time is over."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.ends = given, time.monotonic() + given.seconds
        self.failed: list[str] = []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._stop, daemon=True).start()

    def run(self, recipe: Path, output: Path, changes: dict[str, Any]) -> str:
        """Run a recipe; its log is beside its output. Returns what it said if it failed, nothing if it came to its end or the time is over."""
        log = output.with_suffix(".log")
        before = log.stat().st_size if log.exists() else 0  # of earlier runs
        words = [f"--set={key}={value}" for key, value in changes.items()]
        command = [sys.executable, "-m", "raydense", "run", str(recipe), "--output", str(output), *words]
        environment = os.environ | {"RAYDENSE_SHARERS": str(self.given.at_once)}
        with open(log, "ab") as stream, self._lock:
            if time.monotonic() >= self.ends:
                return ""
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
            self._running.add(process)
            time.sleep(0.5)  # Rays that start at the same instant take each other's ports
        status = process.wait()
        with self._lock:
            self._running.discard(process)
        if status == 0 or time.monotonic() >= self.ends:
            return ""
        return f"ended with {status}\n" + log.read_bytes()[before:].decode(errors="replace")

    def note(self, output: Path, said: str) -> bool:
        """Keep what a run said if it failed; returns whether it did."""
        if said:
            self.failed.append(f"{output}: {said.strip().splitlines()[-1]}")
        return bool(said)

    def _stop(self) -> None:
        time.sleep(max(0.0, self.ends - time.monotonic()))
        with self._lock:
            for process in self._running:  # under the lock, by which others leave it
                process.send_signal(signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    for name in ("model", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-5, 5e-5, 1e-4])
    for name, default in (("at-once", 12), ("most", 500), ("seconds", 10**6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    for folder in given.input:
        table = given.output / folder.name
        asked = {"input": folder.resolve(), "model": given.model.resolve(), "most": given.most, "rates": given.rates}
        refuse_others(table / "asked.json", asked, table.glob("lr-*"))
    runs = Runs(given)
    with ThreadPoolExecutor(given.at_once) as pool, ThreadPoolExecutor(len(given.input)) as folders:
        list(folders.map(lambda folder: _tables(runs, pool, folder), given.input))
    with ThreadPoolExecutor(given.at_once) as pool:
        tables = [given.output / folder.name for folder in given.input]
        list(pool.map(lambda one: _report(*one), [(table, seed) for table in tables for seed in given.seeds]))
    for table in tables:
        for seed in given.seeds:
            _print(table / f"report-{seed}")
    for failed in runs.failed:
        print(f"failed: {failed}", file=sys.stderr)
    return int(bool(runs.failed))


def _tables(runs: Runs, pool: ThreadPoolExecutor, folder: Path) -> None:
    """All of a folder."""
    failed = any(list(pool.map(lambda rate: _try(runs, folder, rate), runs.given.rates)))
    if not failed and (chosen := _choose(runs.given, folder)):
        jobs = [(part, seed) for part in (_table, _ance) for seed in runs.given.seeds]
        list(pool.map(lambda job: job[0](runs, folder, job[1], *chosen), jobs))


def _source(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return {"source": folder.resolve(), "encoder": given.model.resolve()}


def _try(runs: Runs, folder: Path, rate: float) -> bool:
    """Train the baseline with a rate; whether that failed."""
    output = runs.given.output / folder.name / f"lr-{rate:g}"
    changes = _source(runs.given, folder) | {"defaults.lr": rate, "dpr.max_steps": runs.given.most, "dpr.dev.every": EVERY}
    return runs.note(output, runs.run(HERE / "main_tables_dpr.yaml", output, changes))


def _choose(given: argparse.Namespace, folder: Path) -> tuple[float, int] | None:
    """The learning rate that is best on dev, and its steps; None where one of them is not there yet."""
    found = []
    for rate in given.rates:
        manifest = given.output / folder.name / f"lr-{rate:g}" / "dpr" / "manifest.json"
        if not manifest.exists():
            print(f"{folder.name}: {manifest.parent} is not there yet", flush=True)
            return None
        summary = json.loads(manifest.read_text())["summary"]
        found.append((summary["dev"]["mrr@10"], rate, summary["best_step"]))
        print(f"{folder.name}: {rate:g}: dev MRR@10 {summary['dev']['mrr@10']:.4f} at step {summary['best_step']}", flush=True)
    _, rate, steps = max(found)
    return rate, max(steps, 2 * EVERY)


def _ance(runs: Runs, folder: Path, seed: int, rate: float, steps: int) -> None:
    changes = _source(runs.given, folder) | {
        "seed": seed,
        "defaults.lr": rate,
        "ance.max_steps": steps,
        "ance.refresh.every": -(-steps // 3),
    }
    output = runs.given.output / folder.name / f"ance-{seed}"
    runs.note(output, runs.run(HERE / "main_tables_ance.yaml", output, changes))


def _table(runs: Runs, folder: Path, seed: int, rate: float, steps: int) -> None:
    output = runs.given.output / folder.name / f"seed-{seed}"
    noted = output.with_suffix(".json")
    limits = [limit for limit in S_POS if not noted.exists() or limit <= json.loads(noted.read_text())["s_pos"]]
    changes = _source(runs.given, folder) | {"seed": seed, "defaults.lr": rate}
    changes |= {f"{stage}.lr": rate for stage in ("joint", "longer-reranker")}
    changes |= {f"{stage}.max_steps": steps for stage in ("dpr", "rocketqa")}
    changes |= {f"{stage}.max_steps": steps // 2 for stage in ("pair-1", "pair", "start", "joint", "longer-reranker")}
    for limit in limits:
        noted.write_text(json.dumps({"s_pos": limit, "lr": rate, "steps": steps}))
        said = runs.run(HERE / "main_tables.yaml", output, changes | {"pseudo.s_pos": limit, "gold-and-pseudo.s_pos": limit})
        if "no example is left" not in said or limit == S_POS[-1]:
            runs.note(output, said)
            return


def _report(table: Path, seed: int) -> None:
    """The rows of a seed that are there, in one report."""
    folders = {name: [table / f"{part}-{seed}" / stage for part in ("seed", "ance")] for name, stage in ROWS.items()}
    found = [f"{name}={one}" for name, there in folders.items() for one in there if (one / "manifest.json").exists()]
    qrels = table / f"seed-{seed}" / "data" / "qrels" / "test"
    if any(one.startswith("DPR=") for one in found):
        words = [word for one in found for word in ("--run", one)]
        words += ["--qrels", qrels, "--output", table / f"report-{seed}"]
        shutil.rmtree(table / f"report-{seed}", ignore_errors=True)
        subprocess.run([sys.executable, "-m", "raydense", "evaluate", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _print(report: Path) -> None:
    print(f"\n{report}", flush=True)
    if not (metrics := report / "metrics.json").exists():
        print("not there yet", flush=True)
        return
    for name, row in json.loads(metrics.read_text())["runs"].items():
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in row["metrics"].values()) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
