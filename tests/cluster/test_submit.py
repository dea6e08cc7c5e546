"""The quickstart, submitted as a Ray job to a local cluster with its dashboard, through Ray's own command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import sys
import ray
context = ray.init(address="local", num_cpus=4, include_dashboard=True, dashboard_port=0, log_to_driver=False)
print("DASHBOARD " + context.dashboard_url, flush=True)
sys.stdin.read()
"""
SMALL = ["data.passages=700", "data.shard_rows=350", "data.train_queries=300", "data.dev_queries=20", "data.test_queries=30"]
SMALL += ["retriever-1.max_steps=4", "retriever-2.max_steps=4", "reranker.max_steps=4", "reranked.depth=5"]


@pytest.fixture
def dashboard():
    """The address of a cluster of this test's own; it ends with the process that holds it."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    with subprocess.Popen([sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as head:
        try:
            yield f"http://{_address(head)}"
        finally:
            head.stdin.close()
            head.wait(60)


def _address(head):
    for line in iter(head.stdout.readline, ""):
        if line.startswith("DASHBOARD "):
            return line.split()[1]
    raise AssertionError("the cluster did not start")


def test_quickstart_as_a_job(dashboard, tmp_path):
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
    done = subprocess.run(submit, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "succeeded" in done.stdout
    metrics = json.loads((output / "report" / "metrics.json").read_text())
    assert list(metrics["runs"]) == ["BM25", "retriever 1", "retriever 2", "re-ranked"]
    assert (output / "report" / "report.html").stat().st_size > 10_000
