"""Whoever ends a benchmark ends the command that it measures, and what that has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from search_versions import until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# The command of this benchmark starts a process below it, writes both process ids, and would go on for ten minutes.
_BENCHMARK = """
import sys
from pathlib import Path
from watched import run
run(["sh", "-c", "sleep 600 & echo $$ $! > pids.part; mv pids.part pids; wait"], Path("log"))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)], ids=["term", "int"])
def test_a_benchmark_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with subprocess.Popen([sys.executable, "-c", _BENCHMARK], cwd=tmp_path, env={"PYTHONPATH": str(BENCHMARKS)}) as benchmark:
        while not (tmp_path / "pids").exists():
            assert benchmark.poll() is None
            time.sleep(0.02)
        processes = [int(word) for word in (tmp_path / "pids").read_text().split()]
        benchmark.send_signal(number)
        assert benchmark.wait(60) == status
    assert len(processes) == 2
    until(lambda: not any(map(_runs, processes)), "a process of the command goes on")


def _runs(process: int) -> bool:
    """Whether it is there, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
