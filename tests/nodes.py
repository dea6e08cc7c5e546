"""A Ray cluster of several nodes on this machine, each with a raylet of its own: nodes can be killed, stopped for a while, and join."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from warm_worker import cold_environment

RAY = str(Path(sys.executable).parent / "ray")
_OBJECTS = 200 * 1024**2
_TURN_S = 1.0
MARK = "RAYDENSE_NODES"
_OF_THE_NODE = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


class Node:
    """A node: `ray start` and all that it starts, known by a mark in the environment that they inherit."""

    def __init__(self, cluster: Nodes, name: str, words: list[str], own: Path | None = None) -> None:
        """`own` is a folder that it does not share with the others: there it has a disk of its own."""
        self.frozen = False
        self.name, self._mark, self._log = name, f"{cluster.mark}/{name}/", cluster.folder / f"{name}.log"
        self.temp_dir = cluster.folder / ("ray" if "--head" in words else name)
        agent = free_ports(1)[0]
        command = [RAY, "start", "--block", *words, f"--object-store-memory={_OBJECTS}", f"--dashboard-agent-listen-port={agent}"]
        command += ["--min-worker-port=0", "--max-worker-port=0", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
        command += [f"--temp-dir={self.temp_dir}"]
        if own:
            command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs own "$0" && exec "$@"', str(own), *command]
        marks = {MARK: self._mark, "RAYDENSE_CACHE": str(cluster.folder / "caches" / self.temp_dir.name)}
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                command, env=cluster.environment | marks, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def log(self) -> str:
        return self._log.read_text()

    def joined(self) -> bool:
        """Whether its raylet has joined."""
        return "Ray runtime started" in self.log()

    def wait(self) -> bool:
        """Until its raylet has joined, or it has ended: on a very busy machine Ray gives up after 30 s."""
        while not self.joined() and self.process.poll() is None:
            time.sleep(0.1)
        return self.joined()

    def processes(self) -> list[psutil.Process]:
        """All its live processes, the raylet first, since what starts others should end first."""
        return sorted(marked(self._mark), key=lambda one: (name_of(one) != "raylet", one.pid))

    def workers(self) -> list[psutil.Process]:
        """Its processes that are at work for a job: an actor or a task."""
        named = ((one, name_of(one)) for one in self.processes())
        return [one for one, name in named if name.startswith("ray::") and name not in _OF_THE_NODE]

    def kill(self) -> None:
        """kill -9 of the raylet with its workers, as when a machine is gone."""
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another's end and deregisters
            for process in self.processes():
                send(process, number)
        self.process.wait()

    def freeze(self) -> None:
        """Stop all of it, as on a machine that hangs, until `thaw`."""
        self.frozen = True
        for process in self.processes():
            send(process, signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        for process in self.processes():
            send(process, signal.SIGCONT)

    @contextmanager
    def slow(self, share: float = 0.2) -> Iterator[None]:
        """All of it gets this share of the time, as on a machine that others keep busy."""
        stop = threading.Event()

        def turn() -> None:
            while not stop.wait(_TURN_S * share):
                self.freeze()
                stop.wait(_TURN_S * (1 - share))
                self.thaw()

        turning = threading.Thread(target=turn, name=f"{self.name} is slow", daemon=True)
        turning.start()
        try:
            yield
        finally:
            stop.set()
            turning.join()


class Nodes:
    """The cluster: a head without CPUs, where drivers run, and nodes."""

    def __init__(self, folder: Path, cpus: int, gpus: int = 0, **environment: str) -> None:
        """Its nodes have so many GPUs as Ray counts them, which no work of a test computes on."""
        self.folder, self.cpus, self.gpus, self.mark = folder, cpus, gpus, secrets.token_hex(16)
        kept = {key: value for key, value in cold_environment().items() if not key.startswith("RAY_")}
        access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # for a busy machine: nothing is started that has no work, and workers are as important as what they work for
        busy = {"RAY_prestart_worker_first_driver": "0", "RAY_worker_niceness": "0"}
        self.environment = kept | access | busy | environment
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self.nodes: list[Node] = []
        self._started = 0
        self.start_head()

    def start_head(self) -> None:
        """Start the head, or another in place of one that was killed."""
        words = ["--head", "--num-cpus=0", f"--port={self.port}", "--include-dashboard=false"]
        words += [f"--ray-client-server-port={free_ports(1)[0]}"]
        # where Ray would look whether a cluster of this address runs on this machine: the nodes that outlived the head are on others
        (self.folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
        self.head = _patiently(lambda: Node(self, f"head-{self._number()}", words))

    def begin(self, own: Path | None = None) -> Node:
        """A new node, which joins by itself; its files lie in a folder of its own."""
        words = [f"--address={self.address}", f"--num-cpus={self.cpus}", f"--num-gpus={self.gpus}"]
        return Node(self, f"node-{self._number()}", words, own)

    def add(self, own: Path | None = None) -> Node:
        """A new node, once it has joined."""
        self.nodes.append(_patiently(lambda: self.begin(own)))
        return self.nodes[-1]

    def driver(self, *words: str, log: Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """A process on the head that joins the cluster; its output goes to `log`."""
        joins = self.environment | {MARK: f"{self.mark}/driver/", "RAY_ADDRESS": self.address}
        with open(log, "a") as stream:
            return subprocess.Popen([sys.executable, *words], cwd=cwd, env=joins, stdout=stream, stderr=stream, start_new_session=True)

    def end(self) -> None:
        """kill -9 of all that was started here, and of nothing else."""
        end_marked(self.mark)

    def _number(self) -> int:
        self._started += 1
        return self._started


@contextmanager
def several_nodes(folder: Path, nodes: int, cpus: int = 2, gpus: int = 0, **environment: str) -> Iterator[Nodes]:
    """A cluster with so many nodes in addition to its head, Ray's settings from `environment`; `folder` has a short path, for the sockets."""
    cluster = Nodes(folder, cpus, gpus, **environment)
    try:
        for _ in range(nodes):
            cluster.add()
        yield cluster
    finally:
        cluster.end()


def _patiently(begin: Callable[[], Node]) -> Node:
    for _ in range(3):
        if (node := begin()).wait():
            return node
        node.kill()
    raise AssertionError(f"{node.name} did not start:\n{node.log()}")


def marked(mark: str) -> list[psutil.Process]:
    """The living processes whose mark begins so."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK, "").startswith(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_marked(mark: str) -> None:
    """kill -9 of all whose mark begins so, first stopped, so that none sees another's end and restarts something."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in marked(mark):
            send(process, number)
    psutil.wait_procs(marked(mark), timeout=10)


def name_of(process: psutil.Process) -> str:
    """What `ps` shows: a worker of Ray shows its current task."""
    with suppress(psutil.Error):
        words = process.cmdline()
        return Path(words[0]).name if words and not words[0].startswith("ray::") else words[0] if words else ""
    return ""


def send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def free_ports(count: int) -> list[int]:
    """Free ports, below those that the system assigns: other Rays on the machine take many of these."""
    held: list[socket.socket] = []
    while len(held) < count:
        with suppress(OSError):
            held.append(socket.create_server(("127.0.0.1", 20_000 + secrets.randbelow(12_000))))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
