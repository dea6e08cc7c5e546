"""Ray workers forked from one process that has imported what takes seconds; `warm_workers` gives them to the Rays that a test process starts.

The imports of a worker that computes (torch, transformers, DeepSpeed, Ray) take 5 to 8 CPU seconds, and the tests start hundreds of workers. A process
imports them once and serves a socket. Ray starts this file where it would start its own `setup_worker.py`: it asks that process to fork, hands over
its streams, folder, environment and arguments, and lives as long as the worker. Processes that tests start
inherit this by their environment (`warm/sitecustomize.py`); one with `cold_environment()` has its Ray start workers in Ray's own way.
"""

import ctypes
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

_SOCKET = "RAYDENSE_TEST_WARM_WORKERS"
_LARGEST = 1 << 18
_PR_SET_PDEATHSIG = 1
# Ray's generators of random ids, one a thread, are seeded from what a fork copies: between two forks so many ids and threads are used up, or
# two workers would give the same ids to their objects. A worker uses a few of each.
_IDS, _THREADS = 10_000, 200
_SLOW = [
    "ray.train.torch",
    "ray.train.v2._internal.execution.controller",
    "ray.data",
    "transformers.models.bert.modeling_bert",
    "deepspeed",
]
_SLOW += ["raydense.training.loop", "raydense.training.shards", "raydense.inference.pipeline", "raydense.retrieval.pool", "faiss"]


@contextmanager
def warm_workers(folder: Path) -> Iterator[None]:
    """While it is open, workers of a Ray that this process starts are forked from a process whose socket is in `folder`."""
    from ray._private import ray_constants

    from raydense.runtime.allocator import cpu_worker_env

    address, own = str(folder / "socket"), ray_constants.SETUP_WORKER_FILENAME
    path = os.environ.get("PYTHONPATH")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    os.environ[_SOCKET] = address
    command = [sys.executable, __file__, "--serve", str(listening.fileno())]
    # what Ray reads once, as it is imported: no job yet, and the process whose end ends a worker
    fixed = {"RAY_JOB_ID": "ffffffff", "RAY_RAYLET_PID": str(os.getpid())}
    with subprocess.Popen(
        command, env=os.environ | cpu_worker_env() | fixed, pass_fds=[listening.fileno()], stdin=subprocess.PIPE
    ) as server:
        listening.close()
        ray_constants.SETUP_WORKER_FILENAME = __file__  # joined to the folder of Ray's own, which an absolute path replaces
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent / "warm"), *([path] if path else [])])
        try:
            yield
        finally:
            ray_constants.SETUP_WORKER_FILENAME = own
            server.terminate()


def cold_environment() -> dict[str, str]:
    """The environment of a process whose Ray, one of its own, starts workers in Ray's own way, as one with a token must: a fork knows of none."""
    return {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", _SOCKET)}


def ask(arguments: list[str]) -> int:
    """Have the worker forked whose arguments Ray gives here; the exit status of this process, once the worker has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the worker ends with Ray, also where Ray is killed
    context: dict[str, Any] = {}
    own = [one for one in arguments if one.startswith(("--serialized-runtime-env-context=", "--language="))]
    for one in own:
        if one.startswith("--serialized"):
            context = json.loads(one.partition("=")[2])
    wanted = {
        "arguments": [one for one in arguments if one not in own],
        "environment": os.environ | context.get("env_vars", {}),
        "folder": os.getcwd(),
        "nice": os.nice(0),
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ[_SOCKET])
    socket.send_fds(connection, [json.dumps(wanted).encode()], [0, 1, 2])
    worker = int(connection.recv(64))

    def end(*_: Any) -> None:
        os.kill(worker, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    return int(connection.recv(64) or b"1")


class Server:
    """Forks a worker for each connection, sends its process id, and its exit status once it has ended."""

    def __init__(self, listening: socket.socket):
        from ray._raylet import ObjectRef

        self.listening, self.draw = listening, ObjectRef.from_random
        self.workers: dict[int, socket.socket] = {}
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(listening, selectors.EVENT_READ, self.fork)
        self.waiting.register(
            sys.stdin, selectors.EVENT_READ, lambda _: os._exit(0)
        )  # its other end is the test process's, which has ended
        ended, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.waiting.register(ended, selectors.EVENT_READ, self.reap)

    def serve(self) -> None:
        while True:
            for key, _ in self.waiting.select():
                key.data(key.fileobj)

    def fork(self, _: Any) -> None:
        connection, _address = self.listening.accept()
        request, streams, *_rest = socket.recv_fds(connection, _LARGEST, 3)
        if not streams:
            return connection.close()
        self.use_up_ids()
        if not (worker := os.fork()):
            self.become(json.loads(request), streams)
        for stream in streams:
            os.close(stream)
        self.workers[worker] = connection
        connection.send(str(worker).encode())
        self.waiting.register(connection, selectors.EVENT_READ, self.asker_ended)
        return None

    def use_up_ids(self) -> None:
        for _ in range(_IDS):
            self.draw()
        threads = [threading.Thread(target=self.draw) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def become(self, wanted: dict[str, Any], streams: list[int]) -> None:
        """In the forked process: be the worker, and never return."""
        from ray._raylet import Config

        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(3, 256)
            os.setpgid(0, 0)  # Ray ends a worker with its process group
            os.environ.clear()
            os.environ.update(wanted["environment"])
            os.chdir(wanted["folder"])
            os.nice(wanted["nice"] - os.nice(0))
            random.seed()
            Config.initialize("")  # Ray's own, which it reads from the environment once
            sys.path += [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
            sys.argv = wanted["arguments"]
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            os._exit(ended.code if isinstance(ended.code, int) else bool(ended.code))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)

    def reap(self, ended: int) -> None:
        os.read(ended, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if connection := self.workers.pop(found[0], None):
                    with suppress(OSError):
                        connection.send(str(os.waitstatus_to_exitcode(found[1]) & 255).encode())
                    self.close(connection)

    def asker_ended(self, connection: socket.socket) -> None:
        """Ray has ended what it started: the worker ends too."""
        for worker in [worker for worker, its in self.workers.items() if its is connection]:
            del self.workers[worker]
            os.kill(worker, signal.SIGKILL)
        self.close(connection)

    def close(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:  # a worker and who asked for it may end at once
            self.waiting.unregister(connection)
            connection.close()


def main() -> None:
    if sys.argv[1] != "--serve":
        sys.exit(ask(sys.argv[1:]))
    listening = socket.socket(fileno=int(sys.argv[2]))
    for name in _SLOW:
        import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Server(listening).serve()


if __name__ == "__main__":
    main()
