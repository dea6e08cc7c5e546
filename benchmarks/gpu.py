"""Every GPU row of the tables in ten minutes on one card: ours against bare torch and plain FAISS, in turns.

    pip install -e . sentence-transformers && pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-gpu    # torch with CUDA; DeepSpeed is not used
    PYTHONPATH=tests python benchmarks/gpu.py --all [--out gpu.jsonl] [--minutes 10]
    PYTHONPATH=tests python benchmarks/gpu.py --rows encode search            # those whose names have one of the words
    PYTHONPATH=tests python benchmarks/gpu.py --all --device cpu --tiny      # that every row runs, without a GPU

Models of BERT-base's and T5-base's sizes with random weights, and random texts, so nothing is downloaded. A line of JSON is written as each
row is done: a row that fails, or for which there is no time, says so in its line and stops no other; the same command with the same
--out goes on where it was; beside it a file says which card, commit and form it is of, and another's are refused. What is there is printed as a
table. Exits with 2 where there is no GPU, with 1 if a row failed or had no time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import gpu_rows
import torch
from gpu_rows import place_in
from kept import refuse_others
from machine import facts

ROOT = Path(__file__).resolve().parents[1]


def main(words: list[str] | None = None) -> int:
    given = _arguments(words)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing measured (--device cpu --tiny shows that every row runs)", file=sys.stderr)
        return 2
    end, machine = time.monotonic() + 60 * given.minutes, facts(ROOT) | _card(given.device)
    of = {name: machine.get(name) for name in ("name", "gpu", "commit")}
    refuse_others(given.out.with_suffix(".asked.json"), {"device": given.device, "tiny": given.tiny, **of}, [given.out])
    done = _done(given.out)
    _write(given.out, {"machine": machine, "tiny": given.tiny})
    with tempfile.TemporaryDirectory(prefix="raydense-gpu-") as folder:
        place = place_in(given.folder or Path(folder), torch.device(given.device), given.tiny)
        wanted = {name: row for name, row in gpu_rows.rows(place).items() if given.all or any(word in name for word in given.rows)}
        for name, row in wanted.items():
            if "ratio" not in done.get(name, {}):
                done[name] = {
                    "row": name,
                    **(_measured(row, place) if time.monotonic() < end else {"left_out": f"after {given.minutes} minutes"}),
                }
                _write(given.out, done[name])
                print(_line(done[name]), flush=True)
    print(f"{len(wanted)} rows in {given.out}:", *(_line(done[name]) for name in wanted), sep="\n")
    return int(any("ratio" not in done[name] for name in wanted))


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--folder", type=Path, help="keep models, data and indexes here, and use what is there")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(words)
    if not (given.all or given.rows):
        parser.error("give --all or --rows")
    return given


def _card(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpu_gib": round(total / 2**30, 1),
        "gpu_free_gib": round(free / 2**30, 1),
        "cuda": torch.version.cuda,
    }


def _measured(row: Any, place: gpu_rows.Place) -> dict[str, Any]:
    """What a row gives; why not, if it fails."""
    begun = time.monotonic()
    try:
        found: dict[str, Any] = row(place)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        found = {"error": f"{type(error).__name__}: {str(error)[:500]}", "at": f"{Path(last.filename).name}:{last.lineno}"}
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
    return found | {"took_s": round(time.monotonic() - begun, 1)}


def _done(out: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {line["row"]: line for line in lines if "row" in line}


def _write(out: Path, line: dict[str, Any]) -> None:
    with open(out, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _line(done: dict[str, Any]) -> str:
    if "ratio" not in done:
        return f"| {done['row']} | {done.get('error') or done.get('left_out')} |"
    others = ", ".join(f"{name} {rate:,.1f}" for name, rate in done["others"].items())
    more = "".join(f", {key} {value}" for key, value in done.get("more", {}).items())
    return f"| {done['row']} | {done['ours']:,.1f} {done['unit']} | {others} | {done['ratio']:.2f}{more} |"


if __name__ == "__main__":
    sys.exit(main())
