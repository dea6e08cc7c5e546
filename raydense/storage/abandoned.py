"""What kills left in the cache of this machine, and what is there of unfinished outputs that nobody goes on with: removed after a while."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from raydense.storage.artifact import ASIDE, WORK
from raydense.storage.files import ASIDES, remove_left

ABANDONED_S = 7 * 86_400.0
_EVERY_S = 3_600.0


def sweep(cache: Path) -> None:
    """Remove it, at most once an hour: there may be tens of thousands of records to read."""
    swept = cache / "locks" / "swept"
    if swept.exists() and time.time() - swept.stat().st_mtime < _EVERY_S:
        return
    swept.touch()
    remove_left([*(cache / "files").rglob(ASIDES), *(cache / "work" / "writing").glob(ASIDES)])
    for work in (cache / "work").glob(f"*/{WORK}"):
        with suppress(OSError):  # its process has finished it, or is another user's
            _remove_abandoned(work)
    for file in (one for scheme in ("s3", "gs") for one in (cache / "work" / scheme).rglob("*")):  # what a training or a sweep appends to
        with suppress(OSError):
            if file.is_file() and _is_abandoned(file):
                file.unlink()


def _remove_abandoned(work: Path) -> None:
    """Remove the files of an unfinished output that were written a week ago and are in the bucket, from where who goes on fetches them.

    Their records go, too, and what was not whole; what the bucket may not have stays, as replies of a language model.
    """
    asides = [file for aside in work.glob(f"{ASIDE}*") for file in aside.rglob("*")]
    for file in (*_uploaded(work), *asides):
        if file.is_file() and _is_abandoned(file):
            file.unlink()
    if all(one.is_dir() and _is_abandoned(one) for one in work.parent.rglob("*")):
        shutil.rmtree(work.parent)


def _uploaded(work: Path) -> Iterator[Path]:
    """The files that are in the bucket, each before its record."""
    for record in work.glob("commits/*.json"):
        with suppress(OSError, ValueError):  # a damaged one, or another user's
            fields = json.loads(record.read_bytes())
            if fields.get("version"):
                yield from (work.parent / fields["path"], record)


def _is_abandoned(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > ABANDONED_S
