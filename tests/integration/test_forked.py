"""Commands that tests fork: what a test may rely on, as in a new process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import psutil
import pytest
from ranks import run_ranks

COMMAND = [sys.executable, "-c"]
WAITS = "import time; print('ready', flush=True); time.sleep(600)"


def printed_by(code: str, *words: str, **given: object) -> str:
    return forked.run([*COMMAND, code, *words], capture_output=True, text=True, check=True, **given).stdout


def test_a_command_has_the_streams_arguments_environment_and_folder_that_it_is_given(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, os.environ['X'], 'PATH' in os.environ, os.getcwd(), sys.stdin.read(), sys.path[0], __name__)"
    expected = f"['-c', 'a', 'b c'] 1 False {tmp_path} in  __main__\n"
    assert printed_by(code, "a", "b c", input="in", env={"X": "1"}, cwd=tmp_path) == expected
    both = "import sys; print(1, flush=True); print(2, file=sys.stderr); print(3)"
    assert forked.run([*COMMAND, both], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout == "1\n2\n3\n"
    unbuffered = "import os, sys; sys.stdout.write('1'); os.write(1, b'2')"
    assert forked.run([sys.executable, "-u", "-c", unbuffered], stdout=subprocess.PIPE).stdout == b"12"


def test_a_module_runs_as_main_with_its_own_path_first(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import sys; print(__name__, sys.argv, sys.path[:2])")
    done = forked.run([sys.executable, "-m", "one", "a"], cwd=tmp_path, env={"PYTHONPATH": "/there"}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"__main__ ['{tmp_path}/one.py', 'a'] ['{tmp_path}', '/there']\n", "")


@pytest.mark.parametrize("code", ["pass", "raise SystemExit(3)", "raise SystemExit('why')", "1 / 0", "import os; os.abort()", "no python"])
def test_a_command_ends_as_a_new_process(code: str) -> None:
    new, fork = (run([*COMMAND, code], capture_output=True, text=True) for run in (subprocess.run, forked.run))
    assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, new.stderr)


def test_an_ordinary_end_waits_for_threads_calls_what_is_registered_and_flushes() -> None:
    code = "import atexit, sys, threading; atexit.register(print, 'last'); threading.Timer(0.1, print, ['thread']).start(); print('main')"
    assert printed_by(code) == "main\nthread\nlast\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_itself(number: signal.Signals) -> None:
    with forked.Popen([*COMMAND, WAITS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"ready\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert process.wait(60) == -number
        assert not psutil.pid_exists(process.pid)


def test_ctrl_c_can_be_caught_and_a_group_of_its_own_be_killed() -> None:
    code = "import time\ntry: print('ready', flush=True); time.sleep(600)\nexcept KeyboardInterrupt: raise SystemExit(130)"
    with forked.Popen([*COMMAND, code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert os.getpgid(process.pid) == os.getpgrp()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    with forked.Popen([*COMMAND, WAITS], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert os.getsid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


def test_threads_and_random_numbers_are_those_of_a_new_process() -> None:
    threads = "import faiss, torch; print(torch.get_num_threads(), faiss.omp_get_max_threads())"
    for count in ("1", "2"):
        assert printed_by(threads, env={**os.environ, "OMP_NUM_THREADS": count}) == f"{count} {count}\n"
    drawn = "import numpy, random, ray; print(random.random(), numpy.random.rand(), ray.ObjectRef.from_random().hex())"
    assert all(len(set(of)) == 3 for of in zip(*(printed_by(drawn).split() for _ in range(3)), strict=True))


def test_a_command_ends_with_the_process_that_asked_for_it() -> None:
    begin = "forked.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.DEVNULL)"
    asks = f"import forked, subprocess, sys; print({begin}.pid, flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([*COMMAND, asks, WAITS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        command = psutil.Process(int(asking.stdout.readline()))
        asking.kill()
        assert not psutil.wait_procs([command], timeout=60)[1]


def fails_or_waits(rank: int, folder: Path) -> None:
    (folder / str(rank)).write_text(str(os.getpid()))
    while not (folder / "0").exists():
        time.sleep(0.01)
    if rank:
        raise ValueError("of rank one")
    time.sleep(600)


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ValueError: of rank one"):
        run_ranks(fails_or_waits, (tmp_path,), 2)
    assert not psutil.pid_exists(int((tmp_path / "0").read_text()))
