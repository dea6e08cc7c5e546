"""Jobs of a local cluster with its dashboard: the scripts of `jobs/` and the quickstart through `ray job submit`, and `raydense submit`."""

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forked
import numpy as np
import pyarrow as pa
import pytest
from nodes import MARK, end_marked, free_ports
from sentence_transformers import SentenceTransformer
from warm_worker import own_ray_environment

import raydense as rd
from raydense.models.tiny import make_tiny_encoder

ROOT = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]  # `ray`
SMALL = ["data.passages=700", "data.shard_rows=350", "data.train_queries=300", "data.dev_queries=20", "data.test_queries=30"]
SMALL += ["retriever-1.max_steps=4", "retriever-2.max_steps=4", "reranker-1.max_steps=4", "reranker.max_steps=4", "reranked.depth=5"]


@pytest.fixture(scope="module")
def environment():
    """Ray accepts only clients with the cluster's token."""
    own = own_ray_environment()
    return {**own, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module")
def dashboard(environment):
    """The address of a cluster of this test's own, on ports of its own; it ends with the processes that were started for it."""
    port, web, agent, client = free_ports(4)
    start = ["--head", "--block", "--num-cpus=4", "--node-ip-address=127.0.0.1", "--include-dashboard=true", f"--port={port}"]
    start += [f"--dashboard-port={web}", f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    with tempfile.TemporaryDirectory(prefix="raydense-", ignore_cleanup_errors=True) as folder, open(f"{folder}/log", "w") as log:
        command = [*RAY, "start", *start, f"--temp-dir={folder}"]
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
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
    raise AssertionError("the dashboard did not come up")


@pytest.fixture(scope="module")
def submit(dashboard, environment):
    """A function that submits a job by `ray job submit`, waits for its end, and gives back what it printed."""
    ready = time.monotonic() + 240  # until the cluster and its agent are up, Ray asks to try again later
    early = ("No available agent", "Failed to connect", "ConnectionError", "Connection refused")

    def call(*job):
        command = [*RAY, "job", "submit", "--address", dashboard, "--working-dir", str(ROOT), "--", sys.executable, *map(str, job)]
        while True:
            done = forked.run(command, capture_output=True, text=True, timeout=540, env=environment)
            if not any(words in done.stdout + done.stderr for words in early) or time.monotonic() > ready:
                break
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "succeeded" in done.stdout
        return done.stdout

    return call


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A data set of 700 passages, the same passages as `psgs_w100.tsv`, and a small encoder with random weights."""
    folder = tmp_path_factory.mktemp("world")
    rd.sample(rd.SampleSettings(passages=700, train_queries=300, dev_queries=20, test_queries=30, output=str(folder / "data")))
    rd.export(rd.ExportSettings(format="dpr", corpus=str(folder / "data/corpus"), output=str(folder / "psgs_w100.tsv")))
    store = rd.PassageStore(folder / "data/corpus")
    make_tiny_encoder(store.passages(np.arange(len(store))), folder / "model", seed=3)
    return folder


@pytest.fixture(scope="module")
def wikipedia(submit, world):
    """What `jobs/encode_wikipedia.py` made of the small psgs_w100.tsv."""
    given = ["--passages", world / "psgs_w100.tsv", "--model", world / "model", "--output", world / "wikipedia"]
    scaled = ["--shard-rows", 100, "--concurrency", "1,2", "--factory", "Flat", "--index-shards", 2]
    assert "passages of 128 dimensions" in submit("jobs/encode_wikipedia.py", *given, *scaled)
    return world / "wikipedia"


@pytest.mark.long
def test_wikipedia_is_imported_encoded_in_shards_and_indexed(wikipedia, world):
    corpus, vectors, index = (json.loads((wikipedia / name / "manifest.json").read_text()) for name in ("corpus", "vectors", "index"))
    store = rd.PassageStore(world / "data/corpus")
    assert corpus["rows"] == vectors["rows"] == len(store)
    assert len(list((wikipedia / "vectors").glob("embeddings-*.arrow"))) == -(-len(store) // 100)
    assert len(index["summary"]["shards"]) == 2


@pytest.mark.long
def test_a_client_asks_the_pool_of_another_job(wikipedia, world, submit):
    """The hits are those of an inner product over all vectors, computed here."""
    questions = ["who was born in the north", "a bridge over the river", "which town has a market"]
    (world / "questions.txt").write_text("\n".join(questions))
    submit("-m", "raydense", "pool", "start", "--name", "shared", "--index", wikipedia / "index")
    given = ["--pool", "shared", "--model", world / "model", "--corpus", wikipedia / "corpus"]
    submit("jobs/search_client.py", *given, "--questions", world / "questions.txt", "--output", world / "hits.jsonl", "--k", 5)
    assert "shared: closed" in submit("-m", "raydense", "pool", "close", "--name", "shared")

    files = sorted((wikipedia / "vectors").glob("embeddings-*.arrow"))
    parts = [pa.ipc.open_file(file).read_all()["embedding"].combine_chunks() for file in files]
    passages = np.concatenate([part.values.to_numpy().reshape(len(part), -1) for part in parts]).astype(np.float32)
    scores = SentenceTransformer(str(world / "model")).encode(questions) @ passages.T
    ids = rd.PassageStore(wikipedia / "corpus").ids(np.arange(len(passages))).to_pylist()
    lines = [json.loads(line) for line in (world / "hits.jsonl").read_text().splitlines()]
    assert [line["question"] for line in lines] == questions
    for line, row in zip(lines, scores, strict=True):
        assert [hit["score"] for hit in line["hits"]] == pytest.approx(sorted(row, reverse=True)[:5], abs=1e-4)
        assert [hit["score"] for hit in line["hits"]] == pytest.approx(
            [row[ids.index(hit["passage_id"])] for hit in line["hits"]], abs=1e-4
        )


@pytest.mark.long
def test_a_training_mines_its_negatives_periodically(world, submit):
    given = ["--data", world / "data", "--model", world / "model", "--output", world / "trained"]
    submit("jobs/train_with_refresh.py", *given, "--epochs", 1, "--refresh-every", 0.6, "--batch-size", 32, "--lr", 1e-3)
    history = [json.loads(line) for line in (world / "trained/retriever/history.jsonl").read_text().splitlines()]
    assert {line["generation"] for line in history if "generation" in line} == {0, 1}
    assert (world / "trained/retriever/refresh/001/manifest.json").exists()
    assert (world / "trained/retriever/model.safetensors").exists()


@pytest.mark.long
def test_quickstart_as_a_job(submit, tmp_path):
    changes = [word for change in SMALL for word in ("--set", change)]
    submit("-m", "raydense", "run", "jobs/recipes/quickstart.yaml", "--output", tmp_path / "out", "--json", *changes)
    metrics = json.loads((tmp_path / "out" / "report" / "metrics.json").read_text())
    assert list(metrics["runs"]) == ["BM25", "retriever 1", "retriever 2", "re-ranked"]
    assert (tmp_path / "out" / "report" / "report.html").stat().st_size > 10_000


def _begin(environment, *words):
    command = [sys.executable, "-m", "raydense", "submit", *words]
    return forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


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
    assert f"{failed}-2: submitted again: {failed} failed with exit code 2" in err

    long = ["sample", "--passages", "50000000", "--output", str(tmp_path / "long"), *submit]
    both = [_begin(environment, *long), _begin(environment, *long)]
    try:
        begun = [_read_to(process.stderr, "raydense-sample-").strip() for process in both]
        name = begun[0].partition(":")[0]
        assert sorted(begun) == [f"{name}: runs already", f"{name}: submitted"]
        for process in both:
            _read_to(process.stderr, f"Running entrypoint for job {name}")
        both[0].send_signal(signal.SIGINT)
        _, printed = both[0].communicate(timeout=240)
        assert both[0].returncode == 130
        assert f"{name} continues" in printed
        assert json.loads(_call(environment, "status", name, "--json", *where)[1])["status"] == "RUNNING"
        assert _call(environment, "stop", name, *where)[1].startswith(f"{name}  stopped after ")
        _, printed = both[1].communicate(timeout=240)
        assert both[1].returncode == 1
        assert f"{name}: stopped after " in printed
    finally:
        for process in both:
            process.kill()
    code, out, _ = _call(environment, "logs", name, *where)
    assert code == 1
    assert f"Running entrypoint for job {name}" in out
