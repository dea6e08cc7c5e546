"""A real suite of three sets, one of them broken: its rows are those of runs made by hand, and what is done is not done again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from beir_sets import make_set
from inference_world import make_retriever, write_table

import raydense as rd
from raydense.cli import main
from raydense.data.importing import import_dataset
from raydense.data.settings import ImportSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import EvaluateSettings, SuiteSettings
from raydense.inference.query_encoder import query_encoder
from raydense.models.dual_encoder import DualEncoder
from raydense.recipes.suite import Suite, run_suite, write_tables

pytestmark = pytest.mark.usefixtures("ray_cluster")

METRICS = ["nDCG@10", "RR(rel=2)@10", "R(rel=2)@20"]


def by_hand(folder: Path, model: Path, source: Path, k: int) -> dict[str, float]:
    """The metrics of the whole set's scores, computed at once, against the qrels of test."""
    data = import_dataset(ImportSettings(format="beir", input=str(source), output=str(folder / "data"))).path
    store, queries = PassageStore(data / "corpus"), read_table(data / "queries", "queries")
    encoder = DualEncoder.load(model)
    passages = encoder.encode_passages(encoder.tokenize_passages(store.passages(np.arange(len(store)))).pad(encoder.tokenizer.pad_id))
    scores = query_encoder(str(model))(queries["text"].to_pylist()) @ passages.detach().numpy().astype(np.float16).astype(np.float32).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    ids = np.array(store.ids(np.arange(len(store))).to_pylist())
    columns = {
        "query_id": np.repeat(queries["query_id"].to_pylist(), k),
        "passage_id": ids[order].ravel(),
        "rank": np.tile(np.arange(1, k + 1, dtype=np.int32), len(order)),
        "score": np.take_along_axis(scores, order, 1).ravel(),
    }
    run = pa.table(columns)
    write_table(folder / "run", "run", run.filter(pa.compute.not_equal(run["query_id"], run["passage_id"])))
    settings = {"run": str(folder / "run"), "qrels": str(data / "qrels" / "test"), "metrics": METRICS, "output": str(folder / "report")}
    return evaluate(EvaluateSettings.read(settings)).summary["result"]["metrics"]


def manifests(folder: Path) -> dict[str, tuple[int, int]]:
    """When each artifact was finished, and the file that shows it."""
    return {str(file): ((stat := file.stat()).st_mtime_ns, stat.st_ino) for file in folder.rglob("manifest.json")}


@pytest.mark.long
def test_a_suite_with_a_broken_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    root, out, model = tmp_path / "beir", tmp_path / "out", make_retriever(tmp_path / "model")
    make_set(root / "plain", packed=True)
    make_set(root / "forum" / "one", seed=2, splits=("dev", "test"))
    broken = make_set(root / "forum" / "two", seed=3) / "corpus.jsonl"
    broken.write_text(broken.read_text() + "{broken\n")
    values = {"suite": str(root), "model": str(model), "k": 20, "metrics": METRICS, "output": str(out)}
    suite = Suite.read(SuiteSettings.read(values))

    failed = run_suite(suite)
    assert list(failed) == ["forum/two"]
    printed = capfd.readouterr().err
    assert "suite: 3 test sets, 0 done before" in printed
    assert f"[2/3] forum/two: failed: forum/two: stages.data: {broken}:32: not JSON" in printed
    assert "[3/3] plain: report-test: done in" in printed
    summary, table = write_tables(suite, failed)
    assert json.loads((out / "suite.json").read_text()) == summary
    assert list(summary["failed"]) == ["forum/two"]
    rows = {row["set"]: row for row in summary["runs"]["dense"]["sets"]}
    assert {name: (row["queries"], row["passages"]) for name, row in rows.items()} == {"forum/one": (8, 31), "plain": (8, 31)}
    for name, row in rows.items():
        assert row["metrics"] == pytest.approx(by_hand(tmp_path / "by-hand" / name, model, root / name, 21)), name
        assert 0 < row["metrics"]["RR(rel=2)@10"] <= 1
    hits = [row["passage_id"] for row in read_table(out / "plain" / "found-test", "run").to_pylist() if row["query_id"] == "q0"]
    assert "q0" not in hits
    assert len(hits) == 20, "as many as asked, without the query itself"
    assert summary["runs"]["dense"]["means"][0] == {"split": "test", "count": 1, "of": 2, "metrics": rows["plain"]["metrics"]}
    assert "Incomplete: forum/two" in table
    assert "forum: mean of 1 of 2" in (out / "suite.md").read_text()

    before = manifests(out)
    assert len(before) == 2 * (4 + 4) + 1
    only = Suite.read(SuiteSettings.read({**values, "sets": "plain forum/one"}))
    assert run_suite(only) == {}
    assert capfd.readouterr().err.count("done before") == 3
    assert manifests(out) == before
    again, _ = write_tables(only, {})
    assert (again["runs"]["dense"]["sets"], again["missing"]) == (list(rows.values()), [])

    with pytest.raises(InputError, match=r"plain: stages\.passages: made from something else \(inputs.model"):
        run_suite(Suite.read(SuiteSettings.read({**values, "sets": "plain", "model": str(make_retriever(tmp_path / "other", seed=9))})))
    assert manifests(out) == before


def test_the_command_ends_with_the_fault_of_a_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    broken = make_set(tmp_path / "beir" / "broken") / "corpus.jsonl"
    broken.write_text("{broken\n")
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--suite", str(tmp_path / "beir"), "--kind", "bm25", "--output", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"raydense: broken: stages.data: {broken}:1: not JSON")
    assert list(json.loads((tmp_path / "out" / "suite.json").read_text())["failed"]) == ["broken"]


def test_from_python_it_returns_the_table_or_raises_the_fault_of_a_set(tmp_path: Path):
    make_set(tmp_path / "beir" / "good")
    given = {"suite": str(tmp_path / "beir"), "kind": "bm25", "output": str(tmp_path / "out")}
    found = rd.evaluate_suite(rd.SuiteSettings(**given))
    assert found == json.loads((tmp_path / "out" / "suite.json").read_text())
    assert [row["set"] for row in found["runs"]["BM25"]["sets"]] == ["good"]
    broken = make_set(tmp_path / "beir" / "broken") / "corpus.jsonl"
    broken.write_text("{broken\n")
    with pytest.raises(InputError, match="not JSON"):
        rd.evaluate_suite(rd.SuiteSettings(**given))
    assert list(json.loads((tmp_path / "out" / "suite.json").read_text())["failed"]) == ["broken"]
