"""What evaluate reports beyond the metrics: a re-ranked run by depth, and how near positives are to queries and negatives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inference_world import make_corpus, make_retriever

from raydense.data.tables import commit_table
from raydense.evaluation import similarity as similarity_module
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import EvaluateSettings
from raydense.evaluation.trials import summarise
from raydense.storage import Artifact, Draft, fingerprint_of

QUERIES, PASSAGES, CANDIDATES, DEPTH = 30, 90, 40, 25
Hits = dict[str, list[tuple[str, float]]]


def write(folder: Path, kind: str, table: pa.Table, made_from: dict[str, Any], **summary: object) -> Artifact:
    draft = Draft.open(folder, kind, made_from)
    commit_table(draft, f"{kind}.parquet", table)
    return draft.finish(table.num_rows, **summary)


def as_run(hits: Hits) -> pa.Table:
    rows = [(q, p, rank, score) for q, found in hits.items() for rank, (p, score) in enumerate(found, 1)]
    return pa.table(dict(zip(["query_id", "passage_id", "rank", "score"], map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A dense run of one retriever, the first 25 of each query re-ranked, and qrels with one to three positives a query."""
    root, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(5)
    texts = make_corpus(root / "corpus", PASSAGES, 50)
    make_retriever(root / "retriever")
    asked = [" ".join(rng.choice(texts[0].split(), 5)) for _ in range(QUERIES)]
    ids = [f"q{i}" for i in range(QUERIES)]
    write(root / "queries", "queries", pa.table({"query_id": ids, "text": asked}), {"stage": "test"})
    judged = {q: {f"p{p}": int(g) for p, g in zip(rng.permutation(PASSAGES)[:4], (0, 1, 2, 1), strict=True)} for q in ids}
    rows = [(q, p, g) for q, of in judged.items() for p, g in of.items()]
    qrels = pa.table(dict(zip(["query_id", "passage_id", "relevance"], map(list, zip(*rows, strict=True)), strict=True)))
    write(root / "qrels", "qrels", qrels, {"stage": "test"})
    found = {q: [(f"p{p}", -float(rank)) for rank, p in enumerate(rng.permutation(PASSAGES)[:CANDIDATES])] for q in ids}
    made_from = {"stage": "search", "settings": {}, "inputs": {"index": "x", "model": fingerprint_of(root / "retriever")}}
    run = write(root / "found", "run", as_run(found), made_from)
    scored = {q: sorted(((p, float(rng.standard_normal())) for p, _ in hits[:DEPTH]), key=lambda hit: -hit[1]) for q, hits in found.items()}
    made_from = {"stage": "rerank", "settings": {"depth": DEPTH}, "inputs": {"run": run.fingerprint, "model": "y"}}
    write(root / "reranked", "run", as_run(scored), made_from)
    return {"root": root, "judged": judged, "found": found, "scored": scored, "queries": dict(zip(ids, asked, strict=True)), "texts": texts}


def measure(world: dict[str, Any], output: str, **given: Any) -> dict[str, Any]:
    root = world["root"]
    settings = {"run": [f"dense={root / 'found'}", f"again={root / 'reranked'}"], "metrics": ["RR@10", "R@5"], **given}
    report = evaluate(EvaluateSettings.read({"output": str(root / output), "qrels": str(root / "qrels"), **settings}))
    assert json.loads((report.path / "metrics.json").read_text()) == report.summary["result"]
    return report.summary["result"] | {"page": (report.path / "report.html").read_text()}


def reciprocal_rank(hits: list[str], judged: dict[str, int]) -> float:
    return next((1 / rank for rank, p in enumerate(hits[:10], 1) if judged.get(p, 0) >= 1), 0.0)


def test_both_orders_are_cut_at_each_depth(world: dict[str, Any]) -> None:
    result = measure(world, "depths")
    depths = result["depths"]["again"]
    assert depths["candidates"] == "dense"
    assert [row["depth"] for row in depths["depths"]] == [1, 2, 5, 10, 20, 25]
    for row in depths["depths"]:
        first = {q: [p for p, _ in hits[: row["depth"]]] for q, hits in world["found"].items()}
        again = {q: [p for p, _ in hits if p in first[q]] for q, hits in world["scored"].items()}
        for name, run in (("candidates", first), ("reranked", again)):
            expected = np.mean([reciprocal_rank(hits, world["judged"][q]) for q, hits in run.items()])
            assert row[name]["RR@10"] == pytest.approx(expected, abs=1e-12), (row["depth"], name)
    last = depths["depths"][-1]["reranked"]
    assert last["RR@10"] == pytest.approx(result["runs"]["again"]["metrics"]["RR@10"])
    assert "again by depth" in result["page"]


def test_a_seed_whose_report_has_no_metric_of_a_run_has_none(tmp_path: Path) -> None:
    """As reports of earlier versions, of a re-ranked run that each metric looks deeper than; the other runs are compared."""
    made = {}
    for variant, value in (("one", 0.0), ("two", 1.0)):
        columns = {"run": ["again"] * 9 + ["dense"] * 9, "query_id": [f"q{i}" for i in range(9)] * 2, "R@30": [None] * 9 + [value] * 9}
        table = pa.table({**columns, "R@30": pa.array(columns["R@30"], pa.float64())})
        draft = Draft.open(tmp_path / variant, "report", {"stage": "test"})
        draft.commit("per_query.parquet", lambda path, table=table: pq.write_table(table, path), 18)
        made[variant] = {"1": draft.finish(1, result={"runs": {"again": {"metrics": {}}, "dense": {"metrics": {"R@30": value}}}})}
    runs = summarise(made)["runs"]
    assert runs["again"] == {
        "one": {"seeds": ["1"], "metrics": {}}, "two": {"seeds": ["1"], "metrics": {}, "significance": {}},
    }  # fmt: skip
    assert runs["dense"]["one"]["metrics"]["R@30"]["mean"] == 0.0
    assert runs["dense"]["two"]["significance"]["R@30"]["p_randomisation"] < 0.05


def test_without_its_candidates_a_run_has_no_depths(world: dict[str, Any]) -> None:
    result = measure(world, "alone", run=[str(world["root"] / "reranked")])
    assert "depths" not in result
    assert "by depth" not in result["page"]


@pytest.mark.parametrize(
    ("given", "chosen", "passages", "dimension"),
    [
        ({}, range(QUERIES), 10, None),
        ({"query_sample": 0, "passages": 100}, range(QUERIES), 100, None),
        ({"query_sample": 7, "passages": 3}, (0, 5, 10, 14, 19, 24, 29), 3, 4),
    ],
)
def test_similarities_are_those_that_sentence_transformers_gives(
    world: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, int],
    chosen: Sequence[int],
    passages: int,
    dimension: int | None,
) -> None:
    """Also of a run that records the dimension of its index, which holds the first numbers of each vector."""
    for bound, small in (("_QUERIES_AT_ONCE", 4), ("_TEXTS_AT_ONCE", 9), ("_PAIRS_AT_ONCE", 50)):
        monkeypatch.setattr(similarity_module, bound, small)
    from sentence_transformers import SentenceTransformer

    root = world["root"]
    folders = {"queries": str(root / "queries"), "corpus": str(root / "corpus"), "models": [f"trained={root / 'retriever'}"]}
    made_from = Artifact.open(root / "found").manifest["made_from"]
    run = write(root / f"found-{passages}", "run", as_run(world["found"]), made_from, **({"dimension": dimension} if dimension else {}))
    result = measure(world, f"similar-{passages}", run=[f"dense={run.path}"], **folders, **({"similarity": given} if given else {}))
    assert list(result["similarity"]) == ["dense"]
    similarity = result["similarity"]["dense"]
    model = SentenceTransformer(str(root / "retriever"))
    text = {f"p{i}": text for i, text in enumerate(world["texts"])}
    to_query, to_negative, nearer = [], [], []
    for q, judged in ((f"q{number}", world["judged"][f"q{number}"]) for number in chosen):
        positive = next(p for p, grade in judged.items() if grade == 2)
        negatives = [p for p, _ in world["found"][q] if judged.get(p, 0) < 1 and text[p] != text[positive]][:passages]
        vectors = model.encode([text[positive], world["queries"][q], *(text[p] for p in negatives)])[:, :dimension]
        to_query.append(float(vectors[0] @ vectors[1]))
        to_negative += (vectors[2:] @ vectors[0]).tolist()
        nearer += [to_query[-1] > value for value in to_negative[-len(negatives) :]]
    assert (similarity["queries"], similarity["pairs"]) == (len(to_query), len(to_negative))
    for name, values in (("s(p+,q)", to_query), ("s(p+,p-)", to_negative)):
        assert similarity[name]["mean"] == pytest.approx(np.mean(values), rel=1e-4)
        assert similarity[name]["spread"] == pytest.approx(np.std(values), rel=1e-3)
    assert similarity["nearer"] == pytest.approx(np.mean(nearer), abs=0.01)
    assert "nearer to the query" in result["page"]


def test_another_model_than_the_runs_adds_nothing(world: dict[str, Any], tmp_path: Path) -> None:
    root = world["root"]
    other = make_retriever(tmp_path / "other", seed=9)
    result = measure(world, "other", queries=str(root / "queries"), corpus=str(root / "corpus"), models=[str(other)])
    assert "similarity" not in result
