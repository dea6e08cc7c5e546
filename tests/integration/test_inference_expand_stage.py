"""expand() by a generator on Ray Data against the generator called here, killed in the middle; and GAR from its recipe, with a real endpoint."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from chat_server import chat_server

from raydense.data.sample import sample
from raydense.data.settings import SampleSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.inference.expand import expand
from raydense.inference.expand_settings import ExpandSettings
from raydense.models.generator import Generator, decode
from raydense.models.sampling import mixed, sample_queries
from raydense.models.tiny import make_tiny_generator
from raydense.recipes.content import recipe_file
from raydense.recipes.recipe import Recipe, run
from tests.inference_world import WORDS, make_queries
from tests.killing import kill_once_committed

pytestmark = pytest.mark.usefixtures("ray_cluster")

QUERIES, BLOCK = 90, 10
DRIVER = """
import json, sys
import raydense.inference.expand as module
from raydense.inference.expand_settings import ExpandSettings
module.QUERIES_A_FILE = int(sys.argv[2])
module.expand(ExpandSettings.read(json.loads(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("expand")
    make_tiny_generator([" ".join(WORDS)] * 3, root / "model", seed=3)
    make_queries(root / "queries", QUERIES)
    return root


def given(world: Path, output: str, **more: Any) -> dict[str, Any]:
    inputs = {"model": str(world / "model"), "queries": str(world / "queries")}
    prompts = {"prompts": {"answer": "the {query}", "title": "{query} of"}}
    return {"output": str(world / output), **inputs, "kinds": ["answer", "title"], **prompts, "length": 8, "seed": 4, **more}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_contexts_are_those_of_the_generator_alone(world: Path, monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    monkeypatch.setattr("raydense.inference.expand.QUERIES_A_FILE", 40)
    name = f"out-{temperature}"
    made = expand(ExpandSettings.read(given(world, name, temperature=temperature, concurrency="1,2")))
    plain, model = read_table(world / "queries", "queries")["text"].to_pylist(), Generator.load(world / "model", query_length=8)
    for kind, prompt in (("answer", "the {query}"), ("title", "{query} of")):
        found = read_table(made.path / "queries" / kind, "queries")["text"].to_pylist()
        assert len(found) == QUERIES
        for row in (0, 39, 40, 89):
            asked = model.tokenize_passages([prompt.replace("{query}", plain[row])]).pad(model.tokenizer.pad_id)
            how = (1.0, 1, 1.0) if temperature == 0 else (1.0, 0, temperature)
            with torch.inference_mode():
                drawn = decode(model.tokenizer, sample_queries(model, asked, mixed(torch.tensor([4])) ^ row, 1, *how)[0])[0]
            assert found[row] == f"{plain[row]} {drawn}".strip()
    assert {part.split("/")[1] for part in made.summary["parts"]} == {"answer", "title"}


def test_a_killed_driver_continues(world: Path, joining: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.inference.expand.QUERIES_A_FILE", BLOCK)
    driver = forked.Popen([sys.executable, "-c", DRIVER, json.dumps(given(world, "killed")), str(BLOCK)], env=joining)
    output = world / "killed"
    kill_once_committed(driver, output / "queries" / "answer" / ".work" / "commits", "queries-*.json", 2)
    records = (output / "queries").glob("*/.work/commits/queries-*.json")
    recorded = [record.parents[2] / json.loads(record.read_text())["path"] for record in records]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in recorded}
    assert not (output / "manifest.json").exists()
    assert 2 <= len(before) < 2 * QUERIES // BLOCK
    made = expand(ExpandSettings.read(given(world, "killed")))
    whole = expand(ExpandSettings.read(given(world, "whole")))
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in recorded} == before, "what was recorded is made again"
    assert files(made.path) == files(whole.path)
    assert made.summary == whole.summary


def test_gar_from_its_recipe_finds_more(tmp_path: Path) -> None:
    """The endpoint knows the judged passage of each query: its words are the contexts."""
    size = {"passages": 300, "train_queries": 40, "dev_queries": 8, "test_queries": 30}
    data = sample(SampleSettings(**size, shard_rows=2500, seed=1, output=str(tmp_path / "data")))
    corpus = PassageStore(data.path / "corpus")
    judged = read_table(data.path / "qrels" / "test", "qrels").to_pylist()
    of_query = {row["query_id"]: row["passage_id"] for row in judged if row["relevance"] > 0}
    rows = {row["text"]: row["query_id"] for row in read_table(data.path / "queries", "queries").to_pylist()}
    place = {name: at for at, name in enumerate(corpus.ids(np.arange(len(corpus))).to_pylist())}

    def answer(body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"]
        query = rows[prompt.partition("Question: ")[2]]
        words = corpus.passages(np.array([place[of_query[query]]]))[0].split()
        return " ".join(words[:3] if "few words" in prompt else words[:6] if "title" in prompt else words)

    with chat_server(answer) as server:
        changes = (*(f"data.{key}={value}" for key, value in size.items()), f"url={server.url}", "model=oracle")
        made = {stage.name: artifact for stage, artifact, _ in run(Recipe.read(recipe_file("gar-sample"), tmp_path / "out", changes))}
        assert len(server.asked) == 3 * len(of_query)
    # reciprocal rank fusion, read again from the three runs
    scores: dict[tuple[str, str], float] = defaultdict(float)
    for kind in ("answer", "title", "sentence"):
        for row in read_table(made[kind].path, "run").to_pylist():
            scores[row["query_id"], row["passage_id"]] += 1 / (60 + row["rank"])
    fused = read_table(made["fused"].path, "run").to_pylist()
    assert {row["query_id"] for row in fused} == set(of_query)
    assert all(row["score"] == pytest.approx(scores[row["query_id"], row["passage_id"]], rel=1e-6) for row in fused)
    metrics = {name: values["metrics"]["RR@10"] for name, values in made["report"].summary["result"]["runs"].items()}
    assert metrics["BM25"] < metrics["fused"] == pytest.approx(1.0, abs=0.1)
