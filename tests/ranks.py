"""Runs a function as the ranks of a training: processes without Ray, forked from the one that has imported what takes seconds (`forked.py`)."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import forked

_RANK = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
function, arguments = pickle.load(sys.stdin.buffer)
function(int(sys.argv[1]), *arguments)
"""


def run_ranks(function: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """Call `function(rank, *arguments)` in as many processes, and wait for them; an AssertionError shows what the first that failed logged."""
    given, environment = pickle.dumps(sys.path) + pickle.dumps((function, arguments)), os.environ | {"DS_ACCELERATOR": "cpu"}
    with tempfile.TemporaryFile() as log:
        running = []
        for rank in range(ranks):
            command = [sys.executable, "-c", _RANK, str(rank)]
            running.append(forked.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log))
            running[-1].stdin.write(given)
            running[-1].stdin.close()
        try:
            while None in (codes := [process.poll() for process in running]) and not any(codes):
                forked.wait_for_any(running)
            assert not any(codes), _read(log)
        finally:
            for process in running:
                process.kill()
                process.wait()


def _read(log: Any) -> str:
    log.seek(0)
    return log.read().decode()
