"""Stages on a store with intermittent faults, and encoding that is killed and continues on another machine: as on a disk, to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

from raydense.evaluation.settings import SuiteSettings
from raydense.inference.encode import encode
from raydense.inference.settings import EncodeSettings
from raydense.recipes.recipe import Recipe, run
from raydense.recipes.suite import Suite, run_suite, write_tables
from raydense.recipes.sweep import Sweep, plan_sweep
from raydense.recipes.sweep import write_tables as write_sweep
from raydense.recipes.sweep_run import run_sweep
from raydense.storage import Artifact, Place
from tests.inference_world import make_corpus, make_retriever
from tests.s3_server import BUCKET, KEY, SECRET, environment, proxy, with_environment

SHARDS = 8
RECIPE = """
given: {source: ""}
stages:
  data: {do: import, format: beir, input: $source}
  words: {do: index, kind: bm25, shards: 2, corpus: $data/corpus}
  found: {do: search, index: $words, queries: $data/queries, k: 10}
  report: {do: evaluate, run: [$found], qrels: $data/qrels/test, queries: $data/queries, corpus: $data/corpus}
"""
SWEPT = """
stages:
  data: {do: sample, passages: 200, train_queries: 10, dev_queries: 5, test_queries: 10}
  words: {do: index, kind: bm25, corpus: $data/corpus}
  found: {do: search, index: $words, queries: $data/queries, qrels: $data/qrels/test, k: 10}
  report: {do: evaluate, run: [$found], qrels: $data/qrels/test, metrics: [RR@10]}
sweep: {found.k: [2, 10]}
"""
FAULTS = {7: "500", 31: "reset", 43: "cut"}
ENCODE = """
import json, sys
from raydense.recipes.stage import VERBS
VERBS["encode"].run(VERBS["encode"].settings(**json.loads(sys.argv[1])))
"""
pytestmark = pytest.mark.usefixtures("ray_cluster")


def beir(folder: Path) -> Path:
    """A BEIR folder of 300 passages and 20 queries."""
    (folder / "qrels").mkdir(parents=True)
    passages = [
        {"_id": f"p{i}", "title": f"thing {i}", "text": f"the thing of number {i} is {'red' if i % 3 else 'blue'}"} for i in range(300)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    queries = [{"_id": f"q{i}", "text": f"which colour is thing {i * 7}"} for i in range(20)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\tp{i * 7}\t1\n" for i in range(20)))
    return folder


@pytest.mark.long
def test_a_recipe_on_a_store_that_fails(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, source = tmp_path / "r.yaml", beir(tmp_path / "beir")
    recipe.write_text(RECIPE)
    local = {stage.name: made for stage, made, _ in run(Recipe.read(recipe, tmp_path / "out", (f"source={source}",)))}
    with proxy(port, lambda number, _: FAULTS.get(number % 47)) as before:
        there = environment(before.port, tmp_path / "a")
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        for file in source.rglob("*.*"):
            Place.of(f"s3://{BUCKET}/beir/{file.relative_to(source)}").publish(file)
        words = ["run", str(recipe), "--output", f"s3://{BUCKET}/out", "--set", f"source=s3://{BUCKET}/beir"]
        process = forked.run(
            [sys.executable, "-m", "raydense", *words], env=with_environment(there), capture_output=True, text=True, timeout=400
        )
        assert process.returncode == 0, process.stderr
        assert set(before.happened) == set(FAULTS.values())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path / "b"))  # what another machine sees
    for name, made in local.items():
        opened = Artifact.open(f"s3://{BUCKET}/out/{name}")
        assert opened.fingerprint == made.fingerprint, name
        assert not [left for left in Place.of(f"s3://{BUCKET}/out/{name}").files() if left.startswith(".work/")]
    assert Artifact.open(f"s3://{BUCKET}/out/report").summary["result"] == local["report"].summary["result"]
    whole = (
        process.stdout
        + process.stderr
        + "".join(str(Place.of(f"s3://{BUCKET}/out/{name}").read()) for name in manifests(f"s3://{BUCKET}/out"))
    )
    assert SECRET not in whole
    assert KEY not in whole


@pytest.mark.long
def test_a_suite_on_a_store(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, there, output = beir(tmp_path / "sets" / "things"), environment(port, tmp_path / "cache"), f"s3://{BUCKET}/suite"
    asked = {"kind": "bm25", "k": 10, "metrics": ["nDCG@10"]}
    local = Suite.read(SuiteSettings(suite=str(tmp_path / "sets"), output=str(tmp_path / "out"), **asked))
    assert run_suite(local) == {}
    summary, _ = write_tables(local, {})
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    for file in source.rglob("*.*"):
        Place.of(f"s3://{BUCKET}/sets/things/{file.relative_to(source)}").publish(file)
    words = ["evaluate", "--suite", f"s3://{BUCKET}/sets", "--kind", "bm25", "--k", "10", "--metrics", "nDCG@10", "--output", output]
    for done in (0, 1):
        process = forked.run(
            [sys.executable, "-m", "raydense", *words], env=with_environment(there), capture_output=True, text=True, timeout=400
        )
        assert process.returncode == 0, process.stderr
        assert f"1 test set, {done} done before" in process.stderr
        found = json.loads(Place.of(f"{output}/suite.json").read() or b"")
        assert found["runs"]["BM25"]["means"] == summary["runs"]["BM25"]["means"]
        assert found["runs"]["BM25"]["sets"][0]["report"] == f"{output}/things/report-test"
        assert Place.of(f"{output}/suite.md").read() == (tmp_path / "out" / "suite.md").read_bytes()


@pytest.mark.long
def test_a_sweep_on_a_store(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials at once share what is the same in them; the other one is found done by the next command, on another machine."""
    recipe, output = tmp_path / "r.yaml", f"s3://{BUCKET}/sweep"
    recipe.write_text(SWEPT)
    local = Sweep.read(recipe, tmp_path / "out")
    assert local is not None
    assert run_sweep(local) == {}
    summary, _ = write_sweep(local, {})
    words = ["run", str(recipe), "--output", output, "--concurrent", "2"]
    there = with_environment(environment(port, tmp_path / "a"))
    process = forked.run([sys.executable, "-m", "raydense", *words], env=there, capture_output=True, text=True, timeout=400)
    assert process.returncode == 0, process.stderr
    assert f"table: {output}/sweep.md, chart: {output}/sweep.svg" in process.stderr
    for name, value in environment(port, tmp_path / "b").items():
        monkeypatch.setenv(name, value)
    assert json.loads(Place.of(f"{output}/sweep.json").read() or b"")["runs"] == summary["runs"]
    for name in ("sweep.md", "sweep.svg", "trials/found.k=2/trial.json"):
        assert Place.of(f"{output}/{name}").read() == (tmp_path / "out" / name).read_bytes(), name
    assert b"report: done in" in (Place.of(f"{output}/trials/found.k=2/log").read() or b"")
    assert len([name for name in Place.of(output).files() if name.endswith("words/manifest.json")]) == 1
    again = Sweep.read(recipe, output)
    assert again is not None
    assert {row["state"] for row in plan_sweep(again)} == {"done"}


def manifests(uri: str) -> list[str]:
    return [name for name in Place.of(uri).files() if name.endswith((".json", ".html", ".md"))]


@pytest.mark.long
def test_encoding_goes_on_on_another_machine(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_retriever(tmp_path / "model")
    make_corpus(tmp_path / "corpus", 2_400, 2_400 // SHARDS)
    inputs = {"model": str(tmp_path / "model"), "corpus": str(tmp_path / "corpus"), "dtype": "float32"}
    undisturbed = encode(EncodeSettings(output=str(tmp_path / "out"), **inputs))
    for name, value in environment(port, tmp_path / "here").items():
        monkeypatch.setenv(name, value)
    for folder in ("model", "corpus"):
        for file in (tmp_path / folder).rglob("*"):
            if file.is_file():
                Place.of(f"s3://{BUCKET}/{folder}/{file.relative_to(tmp_path / folder).as_posix()}").publish(file)
    uri = f"s3://{BUCKET}/vectors"
    given = json.dumps({**inputs, "model": f"s3://{BUCKET}/model", "corpus": f"s3://{BUCKET}/corpus", "output": uri})
    first = driver(given, environment(port, tmp_path / "first"))
    try:
        end = time.monotonic() + 300
        while not [name for name in Place.of(f"{uri}/.work/commits").files() if name.startswith("embeddings-")]:
            assert first.poll() is None, "it finished before it could be killed"
            assert time.monotonic() < end, "nothing was committed in 300 s"
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    kept = {name: of.written for name, of in Place.of(uri).files().items() if name.startswith("embeddings-")}
    records = Place.of(f"{uri}/.work/commits").files()
    assert kept
    assert not Place.of(f"{uri}/manifest.json").exists()
    assert driver(given, environment(port, tmp_path / "second")).wait(timeout=400) == 0
    made = Artifact.open(uri, "embeddings")
    assert made.fingerprint == undisturbed.fingerprint
    for file in undisturbed.files:
        assert (made.path / file.path).read_bytes() == (undisturbed.path / file.path).read_bytes()
    now = Place.of(uri).files()
    committed = [name for name in kept if any(record.startswith(name) for record in records)]
    assert committed
    assert {name: now[name].written for name in committed} == {name: kept[name] for name in committed}, "committed, and made again"


def driver(given: str, there: dict[str, str]) -> subprocess.Popen[bytes]:
    return forked.Popen([sys.executable, "-c", ENCODE, given], env=with_environment(there))
