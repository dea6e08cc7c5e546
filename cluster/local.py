"""`make cluster-local`: Ray's own autoscaler on this machine, its nodes processes: a cluster that grows under work, to try things on.

It stays in the foreground; Ctrl-C ends what it started, and nothing else. It has ports, a folder and a token of its own, so that it can
stand beside any other Ray.
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
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

RAY = str(Path(sys.executable).parent / "ray")
_PROVIDER = "local_nodes.LocalNodes"
_OBJECTS = 200 * 1024**2
_MARK = "RAYDENSE_LOCAL_CLUSTER"
# The autoscaler reads all of these, and dies where one is missing.
_UNUSED = {
    **{f"{part}_commands": [] for part in ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray", "worker_start_ray")},
    **{part: {} for part in ("auth", "docker", "file_mounts")},
    **{part: [] for part in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
    **dict.fromkeys(("file_mounts_sync_continuously", "no_restart"), False),
}


def autoscaling(port: int, workers: int, cpus: int, memory: int, idle_s: float) -> dict[str, Any]:
    """What the autoscaler is told: a head at `port`; nodes of `cpus` CPUs and `memory` bytes, none at first, `workers` at most, gone after `idle_s` idle."""
    provider = {"type": "external", "module": _PROVIDER, "launch_multiple": True, "head_node_id": FAKE_HEAD_NODE_ID}
    resources = {"CPU": cpus, "memory": memory, "object_store_memory": _OBJECTS}
    node = {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": workers}
    return {
        "cluster_name": "raydense-local",
        "max_workers": workers,
        "provider": provider | {"gcs_address": f"127.0.0.1:{port}"},  # without it nodes would join whatever is at port 6379
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
) -> Iterator[tuple[subprocess.Popen[bytes], str, dict[str, str]]]:
    """A running cluster: its head, the address to submit to, and what the environment of whoever submits must have besides.

    RuntimeError, with the end of the log, where Ray does not start.
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
            yield head, f"http://127.0.0.1:{web}", access
        finally:
            _end(head, mark)


def _environment(mark: str) -> dict[str, str]:
    """Of the head: no other cluster's address; a mark that all its processes inherit; what the autoscaler of such a cluster needs, with `local_nodes`."""
    kept = {key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    told = {"RAY_enable_autoscaler_v2": "1", "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", _MARK: mark}
    # as on a laptop: it listens at the loopback alone, and not at all of the machine's addresses
    told |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    told |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [kept.get("PYTHONPATH")])])}
    return kept | told | {"RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID}


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _wait_for(head: subprocess.Popen[bytes], ports: tuple[int, ...], log: Path) -> None:
    """Until the dashboard listens, which takes jobs, and the agent, which starts them."""
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
    """End the head, then whatever bears the mark; simulated nodes are processes of their own that outlive it."""
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
    """Start the cluster, say how to use it, and wait for Ctrl-C."""
    parser = argparse.ArgumentParser(description="Ray's autoscaler on this machine; Ctrl-C ends it.")
    parser.add_argument("--workers", type=int, default=3, help="the most simulated nodes beside the head  [3]")
    parser.add_argument("--cpus", type=int, default=1, help="logical CPUs of each  [1]")
    parser.add_argument(
        "--memory", type=float, help="GiB of each node and of the head, which search pools are held to  [an equal share of what is free]"
    )
    parser.add_argument("--idle", type=float, default=60, help="seconds without work before one goes  [60]")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    memory = int(given.memory * 2**30) if given.memory else psutil.virtual_memory().available // (given.workers + 1)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="raydense-", ignore_cleanup_errors=True) as folder,
            local_cluster(Path(folder), given.workers, given.cpus, memory, given.idle) as (head, address, access),
        ):
            print(_welcome(address, access, given.workers), flush=True)
            head.wait()
            raise RuntimeError(f"Ray ended by itself:\n{(Path(folder) / 'log').read_text()[-2000:]}")
    except KeyboardInterrupt:
        print("ended", flush=True)
    except RuntimeError as error:
        sys.exit(str(error))


def _welcome(address: str, access: dict[str, str], workers: int) -> str:
    ray, python = os.path.relpath(RAY), os.path.relpath(sys.executable)
    exports = " ".join(f"{key}={value}" for key, value in access.items())
    return f"""A head with 2 logical CPUs, and up to {workers} nodes beside it while there is work. Its dashboard: {address}

In another terminal, in the same folder:

  export RAY_ADDRESS={address} {exports}
  {ray} job submit -- $PWD/{python} -m raydense run $PWD/jobs/recipes/quickstart.yaml --output $PWD/out
  {ray} job list

Without --working-dir: all nodes are on this machine and see the code, and a new node would empty the folder that they share for it.

Ctrl-C ends it."""


if __name__ == "__main__":
    main()
