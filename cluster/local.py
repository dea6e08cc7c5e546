"""`make cluster-local`: a Ray cluster on this machine that grows with the work, for trying things out; its nodes are processes.

It stays in the foreground; Ctrl-C ends what it started, and nothing else. It has its own ports, folder and token, so that it can run
next to any other Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from raydense.runtime.limits import memory_free
from raydense.runtime.ray_internals import simulated_head

RAY = str(Path(sys.executable).parent / "ray")
_PROVIDER = "local_nodes.LocalNodes"
_OBJECTS = 200 * 1024**2
_MARK = "RAYDENSE_LOCAL_CLUSTER"
# The autoscaler reads all of these, and fails if one is missing.
_UNUSED = {
    **{f"{part}_commands": [] for part in ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray", "worker_start_ray")},
    **{part: {} for part in ("auth", "docker", "file_mounts")},
    **{part: [] for part in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
    **dict.fromkeys(("file_mounts_sync_continuously", "no_restart"), False),
}


def autoscaling(port: int, workers: int, cpus: int, memory: int, idle_s: float) -> dict[str, Any]:
    """The autoscaler's configuration: a head at `port`; at most `workers` nodes of `cpus` CPUs and `memory` bytes, which end after `idle_s` idle."""
    provider = {"type": "external", "module": _PROVIDER, "launch_multiple": True, "head_node_id": simulated_head()}
    resources = {"CPU": cpus, "memory": memory, "object_store_memory": _OBJECTS}
    node = {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": workers}
    return {
        "cluster_name": "raydense-local",
        "max_workers": workers,
        "provider": provider | {"gcs_address": f"127.0.0.1:{port}"},  # without it nodes would join any Ray at port 6379
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 2, "memory": memory}, "node_config": {}, "max_workers": 0},
            "worker": node,
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": idle_s / 60,
        **_UNUSED,
    }


@contextmanager
def local_cluster(
    folder: Path, workers: int, cpus: int, memory: int, idle_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], str, str, dict[str, str]]]:
    """A running cluster: its head, the URL of its dashboard, the address that drivers join, and the environment variables that both need.

    RuntimeError, with the end of the log, if Ray does not start.
    """
    token, mark = folder / "token", secrets.token_hex(16)
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    port, web, agent, client = _free_ports(4)
    (folder / "autoscaling.json").write_text(json.dumps(autoscaling(port, workers, cpus, memory, idle_s)))
    command = [RAY, "start", "--head", "--block", "--num-cpus=2", f"--memory={memory}", f"--object-store-memory={_OBJECTS}"]
    command += [f"--port={port}", f"--dashboard-port={web}", f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    command += ["--include-dashboard=true", f"--temp-dir={folder}/ray", f"--autoscaling-config={folder}/autoscaling.json"]
    with open(folder / "log", "w") as log:
        head = subprocess.Popen(
            command, env=_environment(mark) | access, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _wait_for(head, (web, agent), folder / "log")
            yield head, f"http://127.0.0.1:{web}", f"127.0.0.1:{port}", access
        finally:
            _end(head, mark)


def _environment(mark: str) -> dict[str, str]:
    """The environment of the head: a mark that all its processes inherit, what its autoscaler needs, this Python for jobs; no other cluster's address."""
    kept = {key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    own = {"RAY_enable_autoscaler_v2": "1", "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", _MARK: mark}
    own |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # it listens only at the loopback, as on a laptop
    own |= {"PATH": _before(kept.get("PATH"), Path(sys.executable).parent)}  # a job's `python` has what this one has
    own |= {"PYTHONPATH": _before(kept.get("PYTHONPATH"), Path(__file__).parent)}  # for `local_nodes`
    return kept | own | dict.fromkeys(("RAY_CLOUD_INSTANCE_ID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"), simulated_head())


def _before(paths: str | None, first: Path) -> str:
    return os.pathsep.join([str(first), *([paths] if paths else [])])


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _wait_for(head: subprocess.Popen[bytes], ports: tuple[int, ...], log: Path) -> None:
    """Wait until the dashboard listens, which takes jobs, and the agent, which starts them."""
    for port in ports:
        while not _listens(port):
            if head.poll() is not None:
                raise RuntimeError(f"Ray did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _end(head: subprocess.Popen[bytes], mark: str) -> None:
    """End the head, then every process with the mark; simulated nodes are processes of their own that outlive it."""
    started = _marked(mark) + _family(head.pid)
    head.terminate()
    try:
        head.wait(20)
    except subprocess.TimeoutExpired:
        head.kill()
    for process in (left := {*started, *_marked(mark)}):
        _send(process, signal.SIGTERM)
    for process in psutil.wait_procs(left, timeout=10)[1]:
        _send(process, signal.SIGKILL)
    head.wait()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def main() -> None:
    """Start the cluster, print how to use it, and wait for Ctrl-C."""
    parser = argparse.ArgumentParser(description="Ray's autoscaler on this machine; Ctrl-C ends it.")
    parser.add_argument("--workers", type=int, default=3, help="the most simulated nodes in addition to the head  [3]")
    parser.add_argument("--cpus", type=int, default=1, help="logical CPUs of each  [1]")
    parser.add_argument(
        "--memory", type=float, help="GiB of each node and of the head, a limit for search pools  [an equal share of the free memory]"
    )
    parser.add_argument("--idle", type=float, default=60, help="seconds without work before a node ends  [60]")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    memory = int(given.memory * 2**30) if given.memory else memory_free() // (given.workers + 1)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="raydense-", ignore_cleanup_errors=True) as folder,
            local_cluster(Path(folder), given.workers, given.cpus, memory, given.idle) as (head, web, address, access),
        ):
            print(_welcome(web, address, access, given.workers), flush=True)
            try:
                head.wait()
            except KeyboardInterrupt:
                print("ending the cluster and its nodes, which takes some seconds", flush=True)
                raise
            raise RuntimeError(f"Ray ended by itself:\n{(Path(folder) / 'log').read_text()[-2000:]}")
    except KeyboardInterrupt:
        print("ended", flush=True)
    except RuntimeError as error:
        sys.exit(str(error))


def _welcome(web: str, address: str, access: dict[str, str], workers: int) -> str:
    ray, python = os.path.relpath(RAY), os.path.relpath(sys.executable)
    exports = " ".join(f"{key}={value}" for key, value in access.items())
    return f"""A head with 2 logical CPUs, and up to {workers} more nodes while there is work.
Its dashboard, for `raydense submit` and `ray job`: {web}
Its address, for every other command: {address}

In another terminal, in the same folder:

  export {exports}
  RAY_ADDRESS={address} {python} -m raydense doctor
  {python} -m raydense pool status --address {address}
  {python} -m raydense submit run jobs/recipes/quickstart.yaml --output $PWD/out --address {web}
  {ray} job submit --address {web} -- python -m raydense run $PWD/jobs/recipes/quickstart.yaml --output $PWD/out
  {ray} job list --address {web}

Give `ray job submit` no --working-dir: all nodes are on this machine and see the code, and a new node would empty the folder that they share for it.

Ctrl-C ends it."""


if __name__ == "__main__":
    main()
