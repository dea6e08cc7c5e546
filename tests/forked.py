"""Commands of Python that tests start, forked from the process that has imported what takes seconds (`warm_worker.py`).

`Popen` and `run` stand for those of `subprocess` where a command is `[sys.executable, "-c", CODE, ...]` or `[sys.executable, "-m", MODULE, ...]`. The
command has a process id, streams, folder, environment, arguments, signals and an ordinary end of its own. What a new process alone has, it has not:
memory that is its own, imports that it begins with, another hash seed; a test of these starts a process.
"""

import atexit
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_for
from types import ModuleType, TracebackType
from typing import Any, NoReturn

SOCKET = "RAYDENSE_TEST_WARM_WORKERS"
_THREADS = "OMP_NUM_THREADS"


class Popen(subprocess.Popen):
    """A command that runs. Its parent is the process that it is forked from, which kills it if this one ends before it."""

    def _execute_child(self, args: Sequence[Any], executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, *others: Any) -> None:
        folder, environment, _startup, _flags, shell, child_in, _in, _out, child_out, _err, child_err, *others = others
        if args[0] != sys.executable or not {*args[1:3]} & {"-c", "-m"} or executable or preexec_fn or pass_fds or shell:
            raise ValueError(f"not a command to fork: {args}")
        wanted = {
            "command": [os.fspath(word) for word in args[1:]],
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.path.abspath(folder or os.curdir),
            "group": None if others[-2] else os.getpgrp(),  # of its own, in a session of its own
        }
        self._ended = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended.connect(os.environ[SOCKET])
        streams = [inherited if given == -1 else given for inherited, given in enumerate((child_in, child_out, child_err))]
        socket.send_fds(self._ended, [json.dumps(wanted).encode()], streams)
        self.pid = int(self._ended.recv(64))
        self._child_created = True
        self._close_pipe_fds(child_in, _in, _out, child_out, _err, child_err)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and wait_for([self._ended], timeout):
            with self._waitpid_lock:
                if self.returncode is None:
                    self.returncode = int(self._ended.recv(64))
                    self._ended.close()
        return self.returncode


def wait_for_any(processes: Sequence[Popen]) -> None:
    """Until one of those that run has ended."""
    wait_for([process._ended for process in processes if process.returncode is None])


def run(
    command: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **given: Any,
) -> subprocess.CompletedProcess:
    """`subprocess.run` of a command that is forked."""
    given |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    given |= {"stdin": subprocess.PIPE} if input is not None else {}
    with Popen(command, **given) as process:
        try:
            printed, logged = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, printed, logged)
    if check:
        done.check_returncode()
    return done


def become(command: list[str], path: list[str]) -> NoReturn:
    """In the forked process: run the command as Python does; `path` is where a new process finds modules, without PYTHONPATH."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _set_threads()
    if command[0] == "-u":
        command = command[1:]
        sys.stdout.reconfigure(write_through=True)
    kind, what, *words = command
    sys.argv = [kind, *words]
    sys.path = ["" if kind == "-c" else os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), main.__dict__)
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    except BaseException as error:
        _end(error)
    _end(None)


def _end(error: BaseException | None) -> NoReturn:
    """End as Python does, but for taking the modules apart: that takes seconds where so many are shared with the process forked from."""
    code: Any = error.code if isinstance(error, SystemExit) else int(error is not None)
    if error and not isinstance(error, SystemExit):
        sys.excepthook(type(error), error.with_traceback(_own(error.__traceback__)), None)
    elif not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 255)


def _own(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that a new process shows, too."""
    while trace and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        trace = trace.tb_next
    return trace


def _set_threads() -> None:
    """Have libraries that read the number of threads as they were imported use the one that the environment has now."""
    import faiss
    import numpy as np
    import torch

    np.random.seed()
    threads = int(os.environ.get(_THREADS) or os.cpu_count() or 1)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)
