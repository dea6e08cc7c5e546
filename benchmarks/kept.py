"""What a benchmark keeps from one run to the next, results, data and models: taken only where it is of what is asked now, and whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def refuse_others(file: Path, asked: dict[str, Any], results: Iterable[Path] = ()) -> None:
    """Keep in `file`, beside the results, what they are asked for; end with a line if it names something else, or `results` are there without it."""
    now = json.loads(json.dumps(asked, default=str))
    if not file.exists():
        if found := next((one for one in results if one.exists()), None):
            raise SystemExit(f"{found}: is there, but {file.name}, which says what it is of, is not; give another folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(now))
        return
    before = json.loads(file.read_text())
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        other = "; ".join(f"{name} was {before.get(name)}, and is {now.get(name)}" for name in names)
        raise SystemExit(f"{file}: {other}; give another folder")


def made_whole(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, filled by `make` if it is not there; it gets its name when it is whole, so that what a killed run left is made anew."""
    if not folder.exists():
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.rename(folder)
    return folder
