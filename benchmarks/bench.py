"""The small form of every benchmark, one after another: ratios against peers, kept with the facts of the machine, and what dropped.

    make bench            # or: python benchmarks/bench.py [--only search bm25]: six to eight minutes on two cores; a line is added to benchmarks/history.jsonl
    make bench-compare    # or: python benchmarks/bench.py --compare: the last line against the earlier ones of the same machine; 1 if one dropped

A benchmark takes part by a function `small(work: Path) -> dict[str, Ratio]` (see turns.py); nothing lists it. Each runs in a process of its own
with a time limit, in an empty folder; one that fails is named, and the others go on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HISTORY = HERE / "history.jsonl"
DROP = 0.15
_LIMIT_S = 300.0
_BEFORE = 5  # earlier entries that a new one is compared with
_MISSING = "needs the package "

Entry = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """The ratios of two times, by name; `broken` has what failed now, `gone` what one of the earlier entries has and this one lacks."""

    dropped: dict[str, tuple[float, float]] = field(default_factory=dict)
    others: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def names() -> list[str]:
    """The benchmarks that have a small form."""
    return sorted(path.stem for path in HERE.glob("*.py") if re.search(r"^def small\(", path.read_text(), re.MULTILINE))


def machine_of(entry: Entry) -> tuple[str, list[str]]:
    """What ratios depend on: virtual machines of different processors have one name, and differ by their vector extensions."""
    return entry["machine"]["name"], entry["machine"].get("flags", [])


def compare(now: Entry, earlier: list[Entry]) -> Compared:
    """`now` against the median of each ratio over the last five of the `earlier` entries of the same machine that have it."""
    known = [entry["ratios"] for entry in earlier if machine_of(entry) == machine_of(now)]
    gone = {name for ratios in known[-_BEFORE:] for name in ratios} - now["ratios"].keys()
    found = Compared(broken=now["failed"], gone=sorted(gone))
    for name, (value, _) in now["ratios"].items():
        before = [ratios[name][0] for ratios in known if name in ratios][-_BEFORE:]
        if before and value < (1 - DROP) * median(before):
            found.dropped[name] = median(before), value
        else:
            found.others[name] = median(before) if before else None, value
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names(), default=names(), metavar="NAME", help=", ".join(names()))
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure(given.one[0], Path(given.one[1]))
        return 0
    if given.compare:
        return report(given.history)
    entry = run_all(given.only)
    with open(given.history, "a", encoding="utf-8") as history:
        history.write(json.dumps(entry, sort_keys=True) + "\n")
    return 0


def measure(name: str, out: Path) -> None:
    """Run a small form in this process; its ratios, or the package that it lacks, become JSON in `out`."""
    importlib.import_module("raydense.retrieval.faiss_library")  # before FAISS: plain FAISS gets the kernels that ours takes
    try:
        with tempfile.TemporaryDirectory(prefix=f"raydense-{name}-") as work:
            ratios = importlib.import_module(name).small(Path(work))
        found: Any = {f"{name}: {what}": [round(each.value, 4), each.noise and round(each.noise, 3)] for what, each in ratios.items()}
    except ModuleNotFoundError as error:
        if is_ours(str(error.name)):
            raise
        found = _MISSING + str(error.name)
    out.write_text(json.dumps(found))


def is_ours(module: str) -> bool:
    """Whether a module that cannot be imported belongs to this checkout: that is a failure, not a package that is missing."""
    top = module.partition(".")[0]
    return top in ("raydense", "benchmarks", "tests") or any((ROOT / folder / f"{top}.py").exists() for folder in ("benchmarks", "tests"))


def run_all(wanted: list[str]) -> Entry:
    """Run each in a process of its own, and print what it gives."""
    from machine import facts

    begun, entry = time.monotonic(), {"machine": facts(ROOT), "ratios": {}, "failed": {}, "left_out": {}, "seconds": {}, "peak_mib": {}}
    print(f"{entry['machine']['name']}, load {entry['machine']['load']}, {entry['machine']['commit']}", flush=True)
    for name in wanted:
        run_one(name, entry)
    print(
        f"{len(entry['ratios'])} ratios in {time.monotonic() - begun:.0f} s; {len(entry['failed'])} failed, {len(entry['left_out'])} left out"
    )
    return entry


def run_one(name: str, entry: Entry) -> None:
    """Run one, and put what it gives, or why it gave nothing, in `entry`."""
    from watched import run

    with tempfile.TemporaryDirectory() as folder:
        out, log, end = Path(folder) / "out.json", Path(folder) / "log", time.monotonic() + _LIMIT_S
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(HERE)])
        watched = run([sys.executable, __file__, "--one", name, str(out)], log, lambda: time.monotonic() > end)
        found = json.loads(out.read_text()) if out.exists() else None
        last = watched.said.strip().splitlines()[-1:] or ["it printed nothing"]
    entry["seconds"][name], entry["peak_mib"][name] = round(watched.seconds, 1), round(watched.peaks.together / 2**20)
    if isinstance(found, dict):
        entry["ratios"] |= found
        for what, (value, noise) in found.items():
            print(f"  {what}: {value:.3g} (noise {said(noise)})", flush=True)
    elif found:
        entry["left_out"][name] = found
        print(f"  {name}: left out, {found}", flush=True)
    else:
        late = time.monotonic() > end
        entry["failed"][name] = f"not done in {_LIMIT_S:.0f} s" if late else f"ended with {watched.status}: {last[0][:300]}"
        print(f"  {name}: FAILED, {entry['failed'][name]}", flush=True)


def said(noise: float | None) -> str:
    return "unknown" if noise is None else f"{noise:.0%}"


def report(history: Path) -> int:
    """Print how the last entry compares; 1 if a ratio dropped, or a benchmark failed."""
    entries = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    if not entries:
        print(f"{history} has no entry: run `make bench` first", file=sys.stderr)
        return 2
    *earlier, now = entries
    found = compare(now, earlier)
    same = sum(machine_of(entry) == machine_of(now) for entry in earlier)
    print(f"{now['machine']['commit']} on {now['machine']['name']}, {now['machine']['date']}; {same} earlier entries of this machine")
    for name, (before, value) in found.dropped.items():
        print(f"DROPPED {name}: {before:.3g} -> {value:.3g} ({value / before - 1:+.0%}; noise {said(now['ratios'][name][1])})")
    for name, why in found.broken.items():
        print(f"FAILED  {name}: {why}")
    for name, why in now.get("left_out", {}).items():
        print(f"left out {name}: {why}")
    for name in found.gone:
        print(f"        {name}: not measured this time")
    for name, (known, value) in found.others.items():
        print(
            f"        {name}: {f'{known:.3g} -> {value:.3g} ({value / known - 1:+.0%})' if known else f'{value:.3g}, for the first time'}"
        )
    return 1 if found.dropped or found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
