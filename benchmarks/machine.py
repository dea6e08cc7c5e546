"""Facts of the machine that a measurement needs beside it: processor, memory, versions, commit, load, date."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = [
    "raydense",
    "ray",
    "torch",
    "transformers",
    "tokenizers",
    "faiss-cpu",
    "faiss-gpu",
    "bm25s",
    "numpy",
    "pyarrow",
    "ir-measures",
    "sentence-transformers",
]
_FLAGS = ("sse4_2", "fma", "avx", "amx", "asimd", "sve")


def facts(root: Path) -> dict[str, Any]:
    """What the figures of this machine and of the checkout `root` go with; `name` is the same for all runs on such a machine."""
    cpu, cores, memory = processor(), len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    git = ["git", "-C", str(root)]
    return {
        "name": f"{cpu['model name']}, {cores} cores, {memory / 2**30:.0f} GiB",
        "flags": [flag for flag in cpu["flags"].split() if flag.startswith(_FLAGS)],
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _said([*git, "rev-parse", "--short", "HEAD"]),
        "dirty": bool(_said([*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/history.jsonl"])),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def processor() -> dict[str, str]:
    """`model name` and `flags` of the first CPU, as Linux tells them; elsewhere what Python knows."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().partition("\n\n")[0].splitlines() if file.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {"model name": platform.processor() or platform.machine(), "flags": said.get("Features", "")} | said


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip()
