"""A task of mteb, made from an exported data set: run through the pool it scores as the same stages by hand, and as sentence-transformers."""

from pathlib import Path
from typing import Any

import pytest
from inference_world import make_retriever

import raydense as rd
from raydense.evaluation.mteb_search import MtebSearch

EXACT = {"encode": {"precision": "fp32", "dtype": "float32", "concurrency": (1, 1)}, "index": {"shards": 3}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample (with titles and qrels of three splits), a folder of it for the Hub, and a model of random weights with prefixes."""
    root = tmp_path_factory.mktemp("mteb")
    data = rd.sample(rd.SampleSettings(passages=300, train_queries=40, dev_queries=24, test_queries=24, output=root / "data"))
    rd.export(rd.ExportSettings(format="huggingface", dataset=data, output=root / "hub"))
    rd.DualEncoder.load(make_retriever(root / "plain"), query_prefix="query: ", normalize=True).save(root / "model")
    return root


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mteb")  # not at the top: each process of tests collects this file, and importing mteb takes seconds
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def task_of(folder: Path) -> Any:
    """The retrieval task of a folder that `datasets.load_dataset` reads."""
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Local(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="LocalRetrieval", description="A local data set", dataset={"path": str(folder), "revision": "main"}, type="Retrieval",
            category="t2t", eval_splits=["dev", "test"], eval_langs=["eng-Latn"], main_score="ndcg_at_10",
        )  # fmt: skip

    return Local()


def scores(model: Any, folder: Path) -> dict[str, dict[str, float]]:
    """What mteb measures, by split."""
    import mteb

    (result,) = mteb.evaluate(model, task_of(folder), cache=None, show_progress_bar=False).task_results
    return {split: found[0] for split, found in result.scores.items()}


def by_hand(root: Path, split: str) -> dict[str, float]:
    """What the stages measure."""
    data, out = root / "data", root / "by-hand"
    vectors = rd.encode(
        rd.EncodeSettings(
            model=root / "model", corpus=data / "corpus", precision="fp32", dtype="float32", concurrency=(1, 1), output=out / "emb"
        )
    )
    index = rd.index(rd.IndexSettings(kind="faiss", embeddings=vectors, output=out / "index"))
    asked = {"queries": data / "queries", "qrels": data / "qrels" / split}
    run = rd.search(rd.SearchSettings(index=index, model=root / "model", **asked, k=100, output=out / f"run-{split}"))
    settings = rd.EvaluateSettings(run=[run], qrels=data / "qrels" / split, metrics="nDCG@10 R@100 AP@100", output=out / f"report-{split}")
    found: dict[str, float] = rd.evaluate(settings).summary["result"]["metrics"]
    return found


def test_a_task_scores_as_the_stages_and_as_sentence_transformers(world, tmp_path, ray_cluster):
    import mteb
    from sentence_transformers import SentenceTransformer

    model = MtebSearch(world / "model", tmp_path / "work", **EXACT)
    assert isinstance(model, mteb.SearchProtocol)
    ours = scores(model, world / "hub")
    theirs = scores(SentenceTransformer(str(world / "model"), device="cpu"), world / "hub")
    assert ours.keys() == theirs.keys() == {"dev", "test"}
    for split, found in ours.items():
        assert 0.05 < found["ndcg_at_10"] < 0.95, "the comparison says something"
        direct = by_hand(world, split)
        for name, named in {"ndcg_at_10": "nDCG@10", "recall_at_100": "R@100", "map_at_100": "AP@100"}.items():
            assert found[name] == pytest.approx(direct[named], abs=1e-5), (split, name)
            assert found[name] == pytest.approx(theirs[split][name], abs=1e-5), (split, name)
    made = {path.relative_to(tmp_path / "work").parts: rd.Artifact.open(path.parent) for path in (tmp_path / "work").rglob("manifest.json")}
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("manifest.json")}
    assert {parts[-2] for parts in made} == {"corpus", "embeddings", "index", "queries", "run-1000"}
    assert scores(MtebSearch(world / "model", tmp_path / "work", **EXACT), world / "hub") == ours
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("manifest.json")} == times, "what is there is used again"
