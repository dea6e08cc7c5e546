"""How well `raydense plan --calibrate` foresees a run: predicted and real seconds and bytes of each stage of `calibrate.yaml`.

    python benchmarks/calibrate.py --passages 1000000 --work FOLDER [--seconds 180] [--lists 1024] [--queries 20000]

The plan is made first, then the recipe runs; both are commands of their own, as a user gives them. Stages that are done are kept.
FOLDER/predicted.json and FOLDER/real.json have the figures; a FOLDER of other flags or of another commit is refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kept import refuse_others
from machine import facts
from wikipedia_scale import make_encoder

RAYDENSE = [sys.executable, "-m", "raydense"]
ROOT = Path(__file__).resolve().parents[1]
RECIPE = Path(__file__).with_suffix(".yaml")
FOR_WORDS = 50_000  # passages that the encoder's vocabulary is made from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=20_000, help="that negatives are mined for")
    parser.add_argument("--lists", type=int, default=1_024, help="inverted lists of the second index")
    parser.add_argument("--seconds", type=float, default=180, help="of the calibration")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    asked = {name: value for name, value in vars(given).items() if name != "work"} | {"commit": facts(ROOT)["commit"]}
    refuse_others(given.work / "asked.json", asked, [given.work / "predicted.json"])
    _encoder(given.work)
    words = [str(RECIPE), "--json"]
    for change in (
        f"encoder={given.work / 'encoder'}",
        f"data.passages={given.passages}",
        f"data.train_queries={given.queries}",
        f"data.shard_rows={max(25_000, given.passages // 200)}",
        f"lists.factory=IVF{given.lists},SQfp16",
    ):
        words += ["--set", change]
    predicted = _kept(
        given.work / "predicted.json",
        ["plan", *words, "--output", str(given.work / "planned"), "--calibrate", "--calibrate-seconds", str(given.seconds)],
    )
    real = _kept(given.work / "real.json", ["run", *words, "--output", str(given.work / "out")])
    print(_table(predicted, real, given.work / "out"))


def _encoder(work: Path) -> None:
    """A static encoder, with a vocabulary of a sample."""
    asked = {"train-queries": 100, "dev-queries": 100, "test-queries": 100}
    flags = [f"--{key}={value}" for key, value in {"passages": FOR_WORDS, **asked}.items()]
    subprocess.run([*RAYDENSE, "sample", *flags, "--output", str(work / "data")], check=True, stdout=subprocess.DEVNULL)
    make_encoder(work)


def _kept(file: Path, words: list[str]) -> dict[str, Any]:
    """What a command printed, now or before."""
    if not file.exists():
        done = subprocess.run([*RAYDENSE, *words], stdout=subprocess.PIPE, text=True, check=True)
        file.write_text(done.stdout)
    return json.loads(file.read_text())


def _table(predicted: dict[str, Any], real: dict[str, Any], out: Path) -> str:
    took = {stage["stage"]: stage["seconds"] for stage in real["stages"]}
    lines = ["| stage | predicted s | real s | ratio | predicted bytes | real bytes | ratio |", "|" + " --- |" * 7]
    for row in predicted["stages"]:
        name, figures = row["stage"], row["estimate"]
        disk = sum(file.stat().st_size for file in (out / name).rglob("*") if file.is_file())
        lines.append(_line(name, figures["seconds"], figures["error"], took[name], figures["output_bytes"], disk))
    total, disk = predicted["total"], sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return "\n".join([*lines, _line("all", total["seconds"], total["error"], sum(took.values()), total["output_bytes"], disk)])


def _line(name: str, seconds: float, error: float | None, took: float, size: int, disk: int) -> str:
    error_words = f" ± {error:.1f}" if error is not None else ""
    return f"| {name} | {seconds:.1f}{error_words} | {took:.1f} | {seconds / took:.2f} | {size:,} | {disk:,} | {size / max(1, disk):.2f} |"


if __name__ == "__main__":
    main()
