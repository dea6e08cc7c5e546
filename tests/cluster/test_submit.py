"""The quickstart, submitted as a Ray job to a local cluster with its dashboard, through Ray's own command line."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")
SMALL = ["data.passages=700", "data.shard_rows=350", "data.train_queries=300", "data.dev_queries=20", "data.test_queries=30"]
SMALL += ["retriever-1.max_steps=4", "retriever-2.max_steps=4", "reranker-1.max_steps=4", "reranker.max_steps=4", "reranked.depth=5"]


@pytest.fixture
def environment():
    """Ray lets only those in who know the cluster's token."""
    kept = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    return {**kept, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture
def dashboard(environment):
    """The address of a cluster of this test's own, on ports of its own; it ends with the processes that were started for it."""
    port, web, agent, client = _free_ports(4)
    start = ["--head", "--block", "--num-cpus=4", "--node-ip-address=127.0.0.1", "--include-dashboard=true", f"--port={port}"]
    start += [f"--dashboard-port={web}", f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    with tempfile.TemporaryDirectory(prefix="raydense-") as folder, open(f"{folder}/log", "w") as log:
        command = [RAY, "start", *start, f"--temp-dir={folder}"]
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield f"http://127.0.0.1:{web}"
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            head.wait(60)


def _free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def test_quickstart_as_a_job(dashboard, environment, tmp_path):
    output = tmp_path / "out"
    changes = [word for change in SMALL for word in ("--set", change)]
    entrypoint = [sys.executable, "jobs/run.py", "jobs/recipes/quickstart.yaml", "--output", str(output), "--json", *changes]
    submit = [
        str(Path(sys.executable).parent / "ray"),
        "job",
        "submit",
        "--address",
        dashboard,
        "--working-dir",
        str(ROOT),
        "--",
        *entrypoint,
    ]
    deadline = time.monotonic() + 90
    while True:  # until the cluster and its agent are up, Ray asks to try again later
        done = subprocess.run(submit, capture_output=True, text=True, timeout=540, env=environment)
        early = ("No available agent", "Failed to connect", "ConnectionError", "Connection refused")
        if not any(words in done.stdout + done.stderr for words in early) or time.monotonic() > deadline:
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "succeeded" in done.stdout
    metrics = json.loads((output / "report" / "metrics.json").read_text())
    assert list(metrics["runs"]) == ["BM25", "retriever 1", "retriever 2", "re-ranked"]
    assert (output / "report" / "report.html").stat().st_size > 10_000
