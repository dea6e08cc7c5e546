"""Kills a driver in the middle of its work, or lets Ctrl-C do it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
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


def heeds_ctrl_c() -> None:
    """For a process that is started: what a shell starts in the background is deaf to Ctrl-C, and so would be its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
