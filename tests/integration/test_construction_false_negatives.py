"""Planted false negatives: a sample whose notes answer queries and are not judged for them; a perfect judge finds those that the pool has."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydense.construction.adjudicate import adjudicate
from raydense.construction.annotate import annotate
from raydense.construction.settings import AdjudicateSettings, AnnotateSettings
from raydense.data.sample import sample
from raydense.data.settings import SampleSettings
from raydense.data.tables import read_table
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import EvaluateSettings
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import BM25Settings, IndexSettings, SearchSettings
from tests.annotation_world import answers_of

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("false-negatives")
    sample(SampleSettings(passages=600, train_queries=60, dev_queries=8, test_queries=8, notes=12, unjudged=1.0, output=str(root / "data")))
    for name, k1, b in (("words", 1.2, 0.75), ("short", 0.5, 0.1)):
        built = index(
            IndexSettings(kind="bm25", corpus=root / "data" / "corpus", bm25=BM25Settings(k1=k1, b=b), output=root / f"index-{name}")
        )
        search(SearchSettings(index=built, queries=root / "data" / "queries", k=30, output=root / name))
    return root


def pairs_of(folder: Path) -> set[tuple[str, str]]:
    table = read_table(folder, "qrels")
    return set(zip(table["query_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True))


@pytest.mark.parametrize("keep", [5, 60])  # some of the pool of 2 x 30 passages of each query, and all of it
def test_a_perfect_judge_finds_the_planted_false_negatives(world: Path, keep: int) -> None:
    """Those that were asked: how many the pool has, and ranks high, depends on the runs. BM25 finds few of the paraphrases of the sample."""
    data, folder = world / "data", world / f"keep-{keep}"
    planted, known = pairs_of(data / "qrels" / "unjudged"), pairs_of(data / "qrels" / "train")
    given = {
        "corpus": data / "corpus",
        "queries": data / "queries",
        "qrels": data / "qrels" / "train",
        "run": [world / "words", world / "short"],
    }
    annotation = annotate(AnnotateSettings(keep=keep, depth=30, package=400, output=folder / "annotation", **given))
    pairs = annotation.head(annotation.rows)
    asked = set(zip(pairs["query_id"], pairs["passage_id"], strict=True))
    answers_of(annotation, folder / "judged", "ann", lambda q, p: int((q, p) in planted | known))
    answers_of(annotation, folder / "reviews", "bo", lambda q, p: int((q, p) in planted | known), "review-")
    made = adjudicate(
        AdjudicateSettings(
            annotation=annotation, judgements=folder / "judged", reviews=folder / "reviews", qrels=data / "qrels" / "train",
            run=[world / "words"], output=folder / "adjudicated",
        )
    )  # fmt: skip
    if keep == 60:
        pool = {(row["query_id"], row["passage_id"]) for run in ("words", "short") for row in read_table(world / run, "run").to_pylist()}
        assert planted & asked == planted & pool
    assert 0 < made.summary["false_negatives"] == len(planted & asked)
    assert made.summary["queries_with_false_negatives"] == len({query for query, _ in planted & asked})
    assert made.summary["relabelled"] == 0
    after = read_table(made.path, "qrels").to_pylist()
    assert {(row["query_id"], row["passage_id"]) for row in after if row["relevance"] >= 1} == known | (planted & asked)
    # `evaluate` reads the new judgements, and measures what the report says
    report = evaluate(EvaluateSettings(run=[world / "words"], qrels=made, metrics="RR@10 Success@1 Success@50", output=folder / "report"))
    assert report.summary["result"]["metrics"] == pytest.approx(made.summary["runs"]["words"]["after"])
    assert made.summary["runs"]["words"]["after"]["RR@10"] > made.summary["runs"]["words"]["before"]["RR@10"]
