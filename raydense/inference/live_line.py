"""The live line of a pipeline: the progress of the actors inside the files that they compute."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raydense.runtime.progress import Progress
from raydense.storage import Draft

_LOOK_EVERY_S = 0.2


class Meter:
    """Counts what is done of one file in a way that the driver can read: as the size of a sparse file in the draft's work folder."""

    def __init__(self, draft: Draft, name: str) -> None:
        self._path = meters(draft) / name
        self._done = 0
        self._lock = threading.Lock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        os.truncate(self._path, 0)

    def count(self, n: int) -> None:
        """Count `n` more; may be called from any thread."""
        with self._lock:
            self._done += n
            os.truncate(self._path, self._done)


def meters(draft: Draft) -> Path:
    """The folder of the meters of a draft."""
    return draft.work / "meters"


@contextmanager
def live_line(name: str, draft: Draft, unit: str, total: int, done_before: int) -> Iterator[Callable[[int], None]]:
    """Show the actors' progress, from their meters, until the block ends.

    The meters of other machines are on these, if the output is in a bucket: call what is yielded with the number that is committed at least.
    """
    folder = meters(draft)
    for left in folder.glob("*"):
        left.unlink()
    stop, least = threading.Event(), 0

    def committed(number: int) -> None:
        nonlocal least
        least = number

    with Progress(name, total, unit, done_before) as progress:

        def look() -> None:
            while not stop.wait(_LOOK_EVERY_S):
                progress.set(min(total, done_before + max(least, _sizes(folder.glob("*")))))

        watcher = threading.Thread(target=look, name="live line", daemon=True)
        watcher.start()
        try:
            yield committed
        finally:
            stop.set()
            watcher.join()
        progress.set(total)


def _sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
