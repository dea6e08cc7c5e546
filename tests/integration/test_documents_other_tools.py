"""The Python of docs/guides/other-tools.md, run as it is shown: against a server, a data set and a model in the places that it names."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import free_ports
from ray import serve

import raydense as rd
from raydense.data.tables import read_table
from raydense.models.tiny import make_tiny_encoder
from raydense.retrieval.named import close_pool, pools
from raydense.serving.app import application
from raydense.serving.settings import ServeSettings

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "other-tools.md").read_text()
QUESTION = "when did Drumton Micarmond come into being"


def block(title: str, having: str = "") -> str:
    """The Python shown under a heading, with `having` in it."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S)[1]
    (shown,) = [code for code in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S) if having in code]
    return shown


def run(code: str, **names: Any) -> dict[str, Any]:
    names["__name__"] = "shown"
    exec(compile(code, "other-tools.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's data, smaller."""
    folder = tmp_path_factory.mktemp("other-tools") / "data"
    rd.sample(rd.SampleSettings(passages=300, train_queries=40, dev_queries=8, test_queries=16, seed=1, output=folder))
    return folder


@pytest.fixture(scope="module")
def url(data: Path, ray_cluster: None) -> Iterator[str]:
    """A server of an index of words, as `raydense serve` starts it."""
    words = rd.index(rd.IndexSettings(kind="bm25", corpus=data / "corpus", output=data.parent / "words"))
    port = free_ports(1)[0]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application(ServeSettings(index=[str(words.path)], corpus=str(data / "corpus"))), name="words", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    for name in pools():
        close_pool(name)


def asked(url: str) -> list[dict[str, Any]]:
    body = json.dumps({"query": QUESTION, "k": 3, "texts": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/search", data=body), timeout=120) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())["results"][0]
    return found


def test_langchain(url):
    pytest.importorskip("langchain_core")
    found = run(block("LangChain").replace("http://127.0.0.1:8000", url))["documents"]
    wanted = asked(url)
    assert len(wanted) == 3
    assert [(one.id, one.page_content, one.metadata) for one in found] == [
        (hit["id"], hit["text"], {"title": hit["title"], "score": hit["score"]}) for hit in wanted
    ]


def test_llama_index(url):
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed: pip install llama-index-core")
    found = run(block("LlamaIndex").replace("http://127.0.0.1:8000", url))["nodes"]
    wanted = asked(url)
    assert len(wanted) == 3
    assert [(one.node.node_id, one.node.text, one.node.metadata, one.score) for one in found] == [
        (hit["id"], hit["text"], {"title": hit["title"]}, hit["score"]) for hit in wanted
    ]


def test_mteb(data, tmp_path, monkeypatch, ray_cluster):
    pytest.importorskip("mteb")
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    rd.export(rd.ExportSettings(format="huggingface", dataset=data, output="out/mine"))
    store = rd.PassageStore(data / "corpus")
    make_tiny_encoder(store.passages(np.arange(len(store))), tmp_path / "plain", seed=3)
    rd.DualEncoder.load(tmp_path / "plain", normalize=True).save("out/model")
    *lines, evaluates = block("mteb", "get_tasks").splitlines()
    names = run("\n".join(lines))
    assert [task.metadata.name for task in names["tasks"]] == ["SciFact", "NFCorpus"]
    assert "mteb.evaluate(model, tasks)" in evaluates
    (result,) = run(block("mteb", "class Mine"), **names)["results"].task_results
    measured = result.scores["test"][0]["ndcg_at_10"]
    stages = rd.search(
        rd.SearchSettings(
            index="out/mteb/Mine/default/test/index", model="out/model", queries=data / "queries", qrels=data / "qrels/test", output="run"
        )
    )
    report = rd.evaluate(rd.EvaluateSettings(run=[stages], qrels=data / "qrels/test", metrics="nDCG@10", output="report"))
    assert measured == pytest.approx(report.summary["result"]["metrics"]["nDCG@10"], abs=1e-5)
    assert measured > 0


def test_ir_datasets(data, tmp_path, monkeypatch):
    ir_datasets = pytest.importorskip("ir_datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ir_datasets.registry, "_registered", {**ir_datasets.registry._registered})
    for name, (format, part) in {
        "docs.tsv": ("msmarco", {"corpus": data / "corpus"}),
        "queries.tsv": ("msmarco", {"queries": data / "queries"}),
        "qrels.trec": ("trec", {"qrels": data / "qrels/test"}),
    }.items():
        rd.export(rd.ExportSettings(format=format, output=f"out/{name}", **part))
    run(block("ir_datasets"))
    shown = re.search(r"`(raydense\.import_dataset\(.*?\))` reads it back", GUIDE)[1]
    again = eval(shown, {"raydense": rd})
    assert again.rows == rd.Artifact.open(data).rows
    assert read_table("data/again/qrels/test", "qrels").equals(read_table(data / "qrels/test", "qrels"))
