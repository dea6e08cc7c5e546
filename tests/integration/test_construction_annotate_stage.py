"""The whole of `annotate` with two tiny re-rankers: the score of a pair is the mean of the probabilities that each gives it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raydense.construction.annotate as annotating
from raydense.construction.adjudicate import adjudicate
from raydense.construction.annotate import annotate
from raydense.construction.settings import AdjudicateSettings, AnnotateSettings
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.rerank import rerank
from raydense.inference.settings import RerankSettings
from raydense.models.cross_encoder import CrossEncoder
from raydense.storage import Artifact
from tests.inference_world import file_bytes, make_corpus, make_queries, make_reranker, make_retriever, score_error, write_table

pytestmark = pytest.mark.usefixtures("ray_cluster")

QUERIES, DEPTH, KEEP, PASSAGES = 7, 6, 4, 60


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("annotate")
    for seed, name in ((3, "one"), (4, "two")):
        make_reranker(root / name, make_retriever(root / f"encoder-{name}", seed), steep=True)
    make_corpus(root / "corpus", PASSAGES, shard_rows=25)
    make_queries(root / "queries", QUERIES)
    rng = np.random.default_rng(3)
    for run in ("words", "vectors"):
        hits = np.concatenate([rng.permutation(PASSAGES)[: DEPTH + 3] for _ in range(QUERIES)])
        rank = np.tile(np.arange(1, DEPTH + 4), QUERIES)
        ids = [f"q{i}" for i in np.repeat(np.arange(QUERIES), DEPTH + 3)]
        columns = {"query_id": ids, "passage_id": [f"p{i}" for i in hits], "rank": rank, "score": -rank.astype(float)}
        write_table(root / run, "run", pa.table(columns))
    judged = {"query_id": ["q5", "q1", "q1"], "passage_id": ["p7", "p0", "p9"], "relevance": [1, 1, 0]}
    write_table(root / "qrels", "qrels", pa.table(judged))
    return root


def settings(world: Path, output: Path, **more: object) -> AnnotateSettings:
    inputs = {name: str(world / name) for name in ("corpus", "queries", "qrels")}
    lists = {"run": [str(world / "words"), str(world / "vectors")], "model": [str(world / "one"), str(world / "two")]}
    given = {"depth": DEPTH, "keep": KEEP, "package": 3, "review": 2, "block": 1, **inputs, **lists}
    return AnnotateSettings.read({"output": str(output), **given, **more})


def probability(model: CrossEncoder, query: str, passage: str) -> float:
    tokens = model.tokenize_pairs([query], [passage])
    with torch.inference_mode():
        return float(model(tokens.pad(model.tokenizer.pad_id)).sigmoid()[0])


def test_the_first_of_the_pool_by_mean_probability_are_judged(world: Path) -> None:
    made = annotate(settings(world, world / "made", concurrency=(1, 1)))
    models = [CrossEncoder.load(world / name) for name in ("one", "two")]
    texts = dict(zip([f"p{i}" for i in range(PASSAGES)], make_corpus(world / "again", PASSAGES, 25), strict=True))
    asked = dict(zip(*(read_table(world / "queries", "queries")[name].to_pylist() for name in ("query_id", "text")), strict=True))
    found = [row for part in made.parts(".parquet") for row in pq.read_table(part).to_pylist()]
    assert list(dict.fromkeys(row["query_id"] for row in found)) == ["q5", "q1"]
    for query in ("q5", "q1"):
        pool = set()
        for run in ("words", "vectors"):
            pool |= {r["passage_id"] for r in read_table(world / run, "run").to_pylist() if r["query_id"] == query and r["rank"] <= DEPTH}
        mean = {p: float(np.mean([probability(model, asked[query], texts[p]) for model in models])) for p in pool}
        error = score_error() * max(p * (1 - p) for p in mean.values())  # of a probability
        assert max(mean.values()) - min(mean.values()) > 5 * error, "the scores tell passages apart"
        rows = [row for row in found if row["query_id"] == query]
        assert [row["score"] for row in rows] == pytest.approx([mean[row["passage_id"]] for row in rows], abs=error)
        assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
        assert min(mean[row["passage_id"]] for row in rows) >= max(mean[p] for p in pool - {row["passage_id"] for row in rows}) - 2 * error
        assert sum(row["same_text_as"] is None for row in rows) == KEEP
    assert made.summary["scores"] == "probability"
    assert list(made.summary["models"]) == ["one", "two"]
    again = annotate(settings(world, world / "more-workers", concurrency=(2, 2), block=2))
    assert file_bytes(again.path) == file_bytes(made.path)


def test_a_folder_without_a_trained_reranker_is_one_line(world: Path) -> None:
    with pytest.raises(InputError, match="encoder-one: is no trained re-ranker"):
        annotate(settings(world, world / "wrong", model=[str(world / "encoder-one")]))
    assert not (world / "wrong").exists()


@pytest.mark.parametrize("key", ["model", "corpus"])
def test_an_input_that_is_replaced_before_a_model_scores_is_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """`rerank` begins hours after the stage did, and takes its own fingerprints."""
    folder = tmp_path / key
    shutil.copytree(world / {"model": "one"}.get(key, key), folder)

    def replacing(asked: RerankSettings) -> Artifact:
        shutil.rmtree(folder)
        if key == "model":
            make_reranker(folder, make_retriever(tmp_path / "encoder", seed=9))
        else:
            make_corpus(folder, PASSAGES, shard_rows=20)
        return rerank(asked)

    monkeypatch.setattr(annotating, "rerank", replacing)
    given = {"model": [str(world / "one")], key: [str(folder)] if key == "model" else str(folder)}
    with pytest.raises(InputError, match=rf"{key}: was replaced while a stage was reading it"):
        annotate(settings(world, tmp_path / "out", **given))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_threshold_takes_the_mean_probability_for_a_judge(world: Path) -> None:
    annotation = annotate(settings(world, world / "for-threshold"))
    pairs = [row for part in annotation.parts(".parquet") for row in pq.read_table(part).to_pylist() if row["same_text_as"] is None]
    middle = float(np.median([row["score"] for row in pairs]))
    made = adjudicate(AdjudicateSettings(annotation=annotation, qrels=world / "qrels", threshold=middle, output=world / "by-model"))
    sources = pq.read_table(made.file("sources.pq")).to_pylist()
    above = {(row["query_id"], row["passage_id"]) for row in pairs if row["score"] > middle and row["judged"] is None}
    assert {(row["query_id"], row["passage_id"]) for row in sources if row["source"] == "model"} == above != set()
    assert [row["relevance"] for row in sources if row["before"] is not None] == [1, 1, 0]  # what was judged stays
    assert made.summary["by_source"]["model"] == len(above)
    assert f"| of these by the re-rankers (mean probability above {middle:g}) | {len(above)} |" in made.file("report.md").read_text()
