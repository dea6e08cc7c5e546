"""Ray workers forked from one process that has imported what takes seconds; `warm_workers` gives them to the Rays that a test process starts.

The imports of a worker that computes (torch, transformers, DeepSpeed, Ray) take 5 to 8 CPU seconds, and the tests start hundreds of workers. A process
imports them once and serves a socket. Ray starts `warm/forked_worker.py` where it would start its own: it asks that process to fork, hands over
its streams, folder, environment and arguments, and lives as long as the worker. Processes that tests start
inherit this by their environment (`warm/sitecustomize.py`); one with `cold_environment()` has its Ray start workers in Ray's own way.
Commands of tests are forked from the same process (`forked.py`).
"""

import gc
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
from typing import Any, NoReturn

import forked
from forked import SOCKET

_LARGEST = 1 << 18
_SETUP = str(Path(__file__).with_name("warm") / "forked_worker.py")  # of another name than Ray's, which its raylet leaves out where it can
# Ray's generators of random ids, one a thread, are seeded from what a fork copies: between two forks so many ids and threads are used up, or
# two workers would give the same ids to their objects. A worker uses a few of each.
_IDS, _THREADS = 10_000, 200
# What Ray does beside the work took a fifth of the processor time: it looked for new logs ten times a second among those of hundreds of workers, and
# measured each worker every five seconds, which no test reads.
_QUIET = {"RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0", "LOG_NAME_UPDATE_INTERVAL_S": "86400", "REPORTER_UPDATE_INTERVAL_MS": "86400000"}
# Nor are workers started that have no work yet: each takes a hundredth of a core for as long as it waits.
_QUIET |= {"RAY_prestart_worker_first_driver": "0"}
_SLOW = [
    "ray.train.torch",
    "ray.train.v2._internal.execution.controller",
    "ray.data",
    "transformers.models.bert.modeling_bert",
    "deepspeed",
]
_SLOW += ["raydense.training.loop", "raydense.training.shards", "raydense.inference.pipeline", "raydense.retrieval.pool", "faiss"]
# what Ray imports in every worker and driver at its first call
_SLOW += ["ray._private.arrow_serialization", "pyarrow.json", "pydantic.v1", "ray._private.runtime_env.uv_runtime_env_hook"]
_SLOW += ["ray.data.extensions", "ray.data._internal.issue_detection.issue_detector_manager", "ray.data._internal.planner.plan_udf_map_op"]
_SLOW += ["raydense.refresh.train", "raydense.mining.label", "raydense.mining.mine", "raydense.inference.generate", "raydense.cli"]
# of ranks without Ray, with what their tests import
_SLOW += ["torch._inductor.compile_fx", "setuptools.dist", "sentence_transformers", "pytest"]


@contextmanager
def warm_workers(folder: Path) -> Iterator[None]:
    """While it is open, workers of a Ray that this process starts are forked from a process whose socket is in `folder`, and its logs are not followed.

    Not where there is a GPU: NCCL failed there in such workers ("GPU access blocked by the operating system").
    """
    if Path("/dev/nvidiactl").exists():
        yield
        return
    from ray._private import ray_constants

    from raydense.runtime.allocator import cpu_worker_env

    address, own = str(folder / "socket"), ray_constants.SETUP_WORKER_FILENAME
    path = os.environ.get("PYTHONPATH")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(64)
    os.environ[SOCKET] = address
    command = [sys.executable, __file__, str(listening.fileno())]
    # what Ray reads once, as it is imported: no job yet, and the process whose end ends a worker
    fixed = {"RAY_JOB_ID": "ffffffff", "RAY_RAYLET_PID": str(os.getpid())}
    with subprocess.Popen(
        command, env=os.environ | cpu_worker_env() | fixed, pass_fds=[listening.fileno()], stdin=subprocess.PIPE
    ) as server:
        listening.close()
        ray_constants.SETUP_WORKER_FILENAME = _SETUP  # joined to the folder of Ray's own, which an absolute path replaces
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent / "warm"), *([path] if path else [])])
        # a Ray whose first workers are not there in time never answers its driver; the imports can take more than its minute where a machine is busy
        os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
        os.environ.update(_QUIET)
        try:
            yield
        finally:
            ray_constants.SETUP_WORKER_FILENAME = own
            server.terminate()


def own_ray_environment() -> dict[str, str]:
    """The environment of a process that starts a Ray of its own, whose workers are forked, too."""
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


def cold_environment() -> dict[str, str]:
    """The environment of a process whose Ray, one of its own, starts workers in Ray's own way and follows their logs."""
    return {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", SOCKET, *_QUIET)}


class Server:
    """Forks a process for each connection, sends its process id, and its exit status once it has ended."""

    def __init__(self, listening: socket.socket):
        from ray._raylet import ObjectRef

        self.listening, self.draw = listening, ObjectRef.from_random
        self.forked: dict[int, socket.socket] = {}
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

    def serve(self) -> dict[str, Any]:
        """Returns in a forked process alone: what it is asked to be."""
        while True:
            for key, _ in self.waiting.select():
                if wanted := key.data(key.fileobj):
                    return wanted

    def fork(self, _: Any) -> dict[str, Any] | None:
        connection, _address = self.listening.accept()
        request, streams, *_rest = socket.recv_fds(connection, _LARGEST, 3)
        if not streams:
            connection.close()
            return None
        self.use_up_ids()
        if not (pid := os.fork()):
            wanted = json.loads(request)
            if wanted["group"] is None:
                os.setsid()
            else:
                os.setpgid(0, wanted["group"])
            connection.send(str(os.getpid()).encode())
            connection.close()
            self.leave(streams)
            return wanted
        for stream in streams:
            os.close(stream)
        self.forked[pid] = connection
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

    def leave(self, streams: list[int]) -> None:
        """In the forked process: keep nothing of the server's but what it has imported, and use these streams."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.waiting.close()
        self.listening.close()
        for connection in self.forked.values():
            connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 256)

    def reap(self, ended: int) -> None:
        os.read(ended, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if connection := self.forked.pop(found[0], None):
                    with suppress(OSError):
                        connection.send(str(os.waitstatus_to_exitcode(found[1])).encode())
                    self.close(connection)

    def asker_ended(self, connection: socket.socket) -> None:
        """Who asked for a process has ended, as when Ray ends what it started: the process ends too."""
        for pid in [pid for pid, its in self.forked.items() if its is connection]:
            del self.forked[pid]
            os.kill(pid, signal.SIGKILL)
        self.close(connection)

    def close(self, connection: socket.socket) -> None:
        if connection.fileno() >= 0:  # a process and who asked for it may end at once
            self.waiting.unregister(connection)
            connection.close()


def become(wanted: dict[str, Any], path: list[str]) -> NoReturn:
    """In the forked process: be the worker or the command, and never return; `path` is where it finds modules, without PYTHONPATH."""
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config

    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    random.seed()
    Config.initialize("")  # Ray's own, which it reads from the environment once
    AuthenticationTokenLoader.instance().reset_cache()  # so, too, the token of a cluster
    if "command" not in wanted:
        os.nice(wanted["nice"] - os.nice(0))
        be_worker(wanted["arguments"])
    if SOCKET in os.environ:
        ray_constants.SETUP_WORKER_FILENAME = _SETUP
    forked.become(wanted["command"], path)


def be_worker(arguments: list[str]) -> NoReturn:
    try:
        sys.path += [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else bool(ended.code))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def main() -> None:
    own = {str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    path = [one for one in sys.path if one not in own]
    for name in _SLOW:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy the pages of all that is imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become(Server(socket.socket(fileno=int(sys.argv[1]))).serve(), path)


if __name__ == "__main__":
    main()
