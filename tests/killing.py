"""Kills a driver in the middle of its work, or lets Ctrl-C do it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def kill_once_committed(driver: subprocess.Popen[bytes], commits: Path, pattern: str, least: int) -> None:
    """kill -9 as soon as the folder `commits` holds so many records of a name like `pattern`."""
    end = time.monotonic() + 300
    try:
        while len(list(commits.glob(pattern))) < least:
            assert driver.poll() is None, "it finished before it could be killed"
            assert time.monotonic() < end, "nothing was committed in 300 s"
            time.sleep(0.002)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()


@contextmanager
def ctrl_c_once(ready: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C for this process in the block, as soon as `ready()`; where the block ends before that, no later test hears it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if ready():
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
