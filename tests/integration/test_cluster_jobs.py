"""Jobs of a local cluster with its dashboard: the quickstart through Ray's own command line, and what `raydense submit` submits."""

import contextlib
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
from killing import heeds_ctrl_c
from nodes import MARK, end_marked, free_ports

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")
SMALL = ["data.passages=700", "data.shard_rows=350", "data.train_queries=300", "data.dev_queries=20", "data.test_queries=30"]
SMALL += ["retriever-1.max_steps=4", "retriever-2.max_steps=4", "reranker-1.max_steps=4", "reranker.max_steps=4", "reranked.depth=5"]


@pytest.fixture(scope="module")
def environment():
    """Ray lets only those in who know the cluster's token."""
    kept = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    return {**kept, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module")
def dashboard(environment):
    """The address of a cluster of this test's own, on ports of its own; it ends with the processes that were started for it."""
    port, web, agent, client = free_ports(4)
    start = ["--head", "--block", "--num-cpus=4", "--node-ip-address=127.0.0.1", "--include-dashboard=true", f"--port={port}"]
    start += [f"--dashboard-port={web}", f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    with tempfile.TemporaryDirectory(prefix="raydense-", ignore_cleanup_errors=True) as folder, open(f"{folder}/log", "w") as log:
        command = [RAY, "start", *start, f"--temp-dir={folder}"]
        mark = secrets.token_hex(16)
        head = subprocess.Popen(command, env=environment | {MARK: mark}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait_for(web, head)
            yield f"http://127.0.0.1:{web}"
        finally:
            end_marked(mark)
            head.wait()


def _wait_for(port, process):
    """Until something listens, or the process has ended, which it should not."""
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
    raise AssertionError("the dashboard did not come up")


@pytest.fixture(scope="module")
def quickstart(dashboard, environment, tmp_path_factory):
    """What the quickstart made, submitted as a job."""
    output = tmp_path_factory.mktemp("quickstart") / "out"
    changes = [word for change in SMALL for word in ("--set", change)]
    job = ["jobs/run.py", "jobs/recipes/quickstart.yaml", "--output", str(output), "--json", *changes]
    deadline = time.monotonic() + 90
    while True:  # until the cluster and its agent are up, Ray asks to try again later
        done = _submit(dashboard, environment, *job)
        early = ("No available agent", "Failed to connect", "ConnectionError", "Connection refused")
        if not any(words in done.stdout + done.stderr for words in early) or time.monotonic() > deadline:
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "succeeded" in done.stdout
    return output


def _submit(dashboard, environment, *job):
    """`ray job submit`, until the job has ended."""
    command = [RAY, "job", "submit", "--address", dashboard, "--working-dir", str(ROOT), "--", sys.executable, *job]
    return subprocess.run(command, capture_output=True, text=True, timeout=540, env=environment)


@pytest.mark.long
def test_quickstart_as_a_job(quickstart):
    metrics = json.loads((quickstart / "report" / "metrics.json").read_text())
    assert list(metrics["runs"]) == ["BM25", "retriever 1", "retriever 2", "re-ranked"]
    assert (quickstart / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.long
def test_a_search_client_asks_the_pool_of_another_job(quickstart, dashboard, environment, tmp_path):
    """One job starts the pool and ends, the next one searches by it, a third ends it: the run is the one that the index makes."""

    def job(*words):
        done = _submit(dashboard, environment, *words)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    job("jobs/pool.py", "start", "--name", "shared", "--index", str(quickstart / "dense-1"))
    queries = ["--queries", str(quickstart / "data/queries"), "--model", str(quickstart / "retriever-1"), "--k", "100"]
    job("jobs/search.py", "--pool", "shared", *queries, "--output", str(tmp_path / "found"))
    assert "shared: closed" in job("jobs/pool.py", "close", "--name", "shared")
    assert (tmp_path / "found/run-00000.parquet").read_bytes() == (quickstart / "found-1/run-00000.parquet").read_bytes()


def _begin(environment, *words):
    command = [sys.executable, "-m", "raydense", "submit", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, preexec_fn=heeds_ctrl_c
    )


def _call(environment, *words):
    process = _begin(environment, *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def _read_to(stream, words):
    for line in stream:
        if words in line:
            return line
    raise AssertionError(f"ended without {words!r}")


def test_submit_follows_attaches_and_gives_the_exit_code_back(dashboard, environment, tmp_path):
    where = ["--address", dashboard]
    submit = [*where, "--python", sys.executable]
    (tmp_path / "base.yaml").write_text("stages: {data: {do: sample, passages: 100000, train_queries: 300}}")
    (tmp_path / "small.yaml").write_text("base: base.yaml\nstages: {data: {passages: 700}}")
    recipe = [str(tmp_path / "small.yaml"), "--output", str(tmp_path / "small"), "--set", "data.seed=7", "--json"]
    code, out, err = _call(environment, "run", *recipe, *submit)
    assert code == 0, err
    assert [stage["stage"] for stage in json.loads(out)["result"]["stages"]] == ["data"]
    made = json.loads((tmp_path / "small" / "data" / "manifest.json").read_text())
    assert (700 <= made["rows"] < 1000, made["made_from"]["settings"]["seed"]) == (True, 7)

    index = ["index", "--kind", "bm25", "--corpus", "nowhere", "--output", str(tmp_path / "ix"), *submit]
    code, out, err = _call(environment, *index)
    assert (code, out) == (2, "")
    assert f"{ROOT / 'nowhere'}: is not seen by the cluster's node" in err
    assert environment["RAY_AUTH_TOKEN"] not in err
    assert not (tmp_path / "ix").exists()
    failed = err.splitlines()[-1].partition(":")[0]
    code, out, err = _call(environment, *index, "--no-wait")
    assert (code, out) == (0, f"{failed}-2\n"), err
    assert f"{failed}-2: submitted anew: {failed} failed with exit code 2" in err

    long = ["sample", "--passages", "50000000", "--output", str(tmp_path / "long"), *submit]
    both = [_begin(environment, *long), _begin(environment, *long)]
    try:
        begun = [_read_to(process.stderr, "raydense-sample-").strip() for process in both]
        name = begun[0].partition(":")[0]
        assert sorted(begun) == [f"{name}: runs already", f"{name}: submitted"]
        for process in both:
            _read_to(process.stderr, f"Running entrypoint for job {name}")
        both[0].send_signal(signal.SIGINT)
        _, said = both[0].communicate(timeout=60)
        assert both[0].returncode == 130
        assert f"{name} goes on" in said
        assert json.loads(_call(environment, "status", name, "--json", *where)[1])["status"] == "RUNNING"
        assert _call(environment, "stop", name, *where)[1].startswith(f"{name}  stopped after ")
        _, said = both[1].communicate(timeout=60)
        assert both[1].returncode == 1
        assert f"{name}: stopped after " in said
    finally:
        for process in both:
            process.kill()
    code, out, _ = _call(environment, "logs", name, *where)
    assert code == 1
    assert f"Running entrypoint for job {name}" in out
