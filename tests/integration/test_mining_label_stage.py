"""The whole of `label` on a tiny re-ranker: the teacher's scores are those of `rerank`, and the labels follow from them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import raydense.mining.label as labelling
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.rerank import rerank
from raydense.inference.settings import RerankSettings
from raydense.mining.label import label
from raydense.mining.mine import mine
from raydense.mining.settings import HybridSettings, LabelSettings, MineSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.refresh.train import train
from raydense.storage import Artifact
from raydense.training.batches import Sampler
from raydense.training.history import read_history
from raydense.training.method import method_of
from raydense.training.settings import TrainSettings
from tests.inference_world import file_bytes, make_corpus, make_queries, make_reranker, make_retriever, write_table

pytestmark = pytest.mark.usefixtures("ray_cluster")

QUERIES, K, DEPTH, PASSAGES = 9, 14, 12, 80


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("label")
    make_reranker(root / "model", make_retriever(root / "encoder"))
    make_corpus(root / "corpus", PASSAGES, shard_rows=50)
    make_queries(root / "queries", QUERIES)
    rng = np.random.default_rng(3)
    hits = np.concatenate([rng.permutation(PASSAGES)[:K] for _ in range(QUERIES)])
    rank = np.tile(np.arange(1, K + 1), QUERIES)
    ids = [f"q{i}" for i in np.repeat(np.arange(QUERIES), K)]
    run = pa.table({"query_id": ids, "passage_id": [f"p{i}" for i in hits], "rank": rank, "score": -rank.astype(float)})
    write_table(root / "run", "run", run)
    gold = pa.table({"query_id": [f"q{i}" for i in range(5)], "passage_id": [f"p{hits[i * K]}" for i in range(5)], "relevance": [1] * 5})
    write_table(root / "qrels", "qrels", gold)
    scoring = {name: str(root / name) for name in ("model", "run", "corpus", "queries")}
    rerank(RerankSettings(output=str(root / "reranked"), depth=DEPTH, block=4, **scoring))
    return root


def scored(world: Path) -> pa.Table:
    """The hits that the re-ranker scored: below its depth the run keeps others."""
    run = read_table(world / "reranked", "run")
    return run.filter(pc.less_equal(run["rank"], DEPTH))


def settings(world: Path, output: Path, **more: object) -> LabelSettings:
    """With thresholds among the probabilities that this untrained teacher gives: a third above, a third below."""
    probability = 1 / (1 + np.exp(-scored(world)["score"].to_numpy().astype(float)))
    s_neg, s_pos = np.quantile(probability, [1 / 3, 2 / 3])
    inputs = {name: str(world / name) for name in ("model", "run", "corpus", "queries", "qrels")}
    given = {"depth": DEPTH, "negatives": 3, "s_pos": float(s_pos), "s_neg": float(s_neg)}
    block = {"block": 4} if more.get("model", inputs["model"]) else {}  # nothing is scored without a model
    return LabelSettings.read({"output": str(output), **inputs, **given, **block, **more})


@pytest.mark.parametrize("key", ["model", "run", "corpus", "queries"])
def test_an_input_that_is_replaced_before_the_teacher_scores_is_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """`rerank` begins after the stage did, and takes its own fingerprints."""
    folder = tmp_path / key
    shutil.copytree(world / key, folder)
    table = None if key in ("model", "corpus") else read_table(folder, key)

    def replacing(asked: RerankSettings) -> Artifact:
        shutil.rmtree(folder)
        if key == "model":
            make_reranker(folder, make_retriever(tmp_path / "encoder", seed=9))
        elif key == "corpus":
            make_corpus(folder, PASSAGES, shard_rows=20)
        else:
            write_table(folder, key, table.slice(0, 4 * K) if key == "run" else table.append_column("source", pa.array(["x"] * len(table))))
        return rerank(asked)

    monkeypatch.setattr(labelling, "rerank", replacing)
    with pytest.raises(InputError, match=rf"{key}: was replaced while a stage was reading it"):
        label(settings(world, tmp_path / "out", **{key: str(folder)}))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_labels_follow_from_the_scores_of_rerank(world: Path) -> None:
    made = label(settings(world, world / "labels", concurrency=(1, 1)))
    logits = {(r["query_id"], int(r["passage_id"][1:])): r["score"] for r in scored(world).to_pylist()}
    probability = {pair: 1 / (1 + np.exp(-logit)) for pair, logit in logits.items()}
    s = settings(world, world / "x")
    assert sum(made.summary["candidates"].values()) == QUERIES * DEPTH
    assert made.summary["teacher"] == Artifact.open(world / "reranked").summary["model"]
    examples = read_table(made.path, "examples").to_pylist()
    assert made.rows == len(examples) == QUERIES - made.summary["dropped"]["no positive"]
    for example in examples:
        of = [(row, probability.get((example["query_id"], row))) for row in example["positives"] + example["negatives"]]
        scores = example["positive_scores"] + example["negative_scores"]
        expected = [logits.get((example["query_id"], row)) for row, _ in of]
        assert scores == expected
        sources = zip(of, example["positive_sources"] + example["negative_sources"], strict=True)
        assert all(source == "gold" or (p > s.s_pos if source == "pseudo" else p < s.s_neg) for (_, p), source in sources)
    labelled = {e["query_id"] for e in examples if "gold" in e["positive_sources"]}
    assert labelled == {f"q{i}" for i in range(5)}
    assert made.summary["unlabelled"] == 4
    again = label(settings(world, world / "again", concurrency=(2, 2)))
    assert file_bytes(again.path) == file_bytes(made.path)
    assert again.fingerprint == made.fingerprint


def test_a_run_of_rerank_gives_the_same_labels_without_a_model(world: Path) -> None:
    with_model = label(settings(world, world / "with"))
    without = label(settings(world, world / "without", model=None, run=str(world / "reranked")))
    assert file_bytes(without.path) == file_bytes(with_model.path)
    assert without.summary == with_model.summary


def test_a_shortage_keeps_the_scores_of_the_teacher(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"give run \S+/failed/.work/scores without model") as caught:
        label(settings(world, tmp_path / "failed", negatives=DEPTH, shortage="fail"))
    run = str(caught.value).split("give run ")[1].split(" without")[0]
    kept = label(settings(world, tmp_path / "kept", model=None, run=run))
    assert file_bytes(kept.path) == file_bytes(label(settings(world, world / "with")).path)


def test_hybrid_takes_them(world: Path) -> None:
    labels = label(settings(world, world / "for-hybrid"))
    inputs = {name: str(world / name) for name in ("run", "corpus", "queries", "qrels")}
    hybrid = mine(MineSettings(output=str(world / "hybrid"), hybrid=HybridSettings(labels=str(labels.path)), negatives=4, **inputs))
    pseudo = {e["query_id"]: e["positives"] for e in read_table(labels.path, "examples").to_pylist()}
    for example in read_table(hybrid.path, "examples").to_pylist():
        assert example["positives"] == pseudo[example["query_id"]]
        assert example["negative_sources"] == ["run"] * 2 + ["denoised"] * 2
    assert hybrid.rows == 5


@pytest.mark.parametrize("objective", ["margin-mse", "kl"])
def test_the_scores_of_a_reranked_run_reach_the_loss(
    world: Path, tmp_path: Path, objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step's loss, read off the equations in numpy; a query whose positive the teacher did not score is left out."""
    logits = {(r["query_id"], int(r["passage_id"][1:])): r["score"] for r in scored(world).to_pylist()}
    kept = read_table(world / "reranked", "run").to_pylist()
    unseen = next(int(r["passage_id"][1:]) for r in kept if r["query_id"] == "q5" and r["rank"] > DEPTH)
    gold = read_table(world / "qrels", "qrels").select(["query_id", "passage_id", "relevance"])
    more = pa.table({"query_id": ["q5"], "passage_id": [f"p{unseen}"], "relevance": [1]}).cast(gold.schema)
    write_table(tmp_path / "qrels", "qrels", pa.concat_tables([gold, more]))
    inputs = {name: str(world / name) for name in ("corpus", "queries")}
    asked = {"run": str(world / "reranked"), "qrels": str(tmp_path / "qrels"), "negatives": 4, "keep_scores": True, **inputs}
    mined = mine(MineSettings.read({"output": str(tmp_path / "mined"), **asked}))
    assert {e["query_id"]: e["positive_scores"][0] for e in read_table(mined.path, "examples").to_pylist()} == {
        **{f"q{i}": pytest.approx(logits[f"q{i}", int(gold["passage_id"][i].as_py()[1:])]) for i in range(5)},
        "q5": None,
    }
    short = {"model": str(world / "encoder"), "dropout": 0.0, "batch_size": 5, "negatives": 3, "max_steps": 1, "engine": {"name": "ddp"}}
    given = TrainSettings.read(
        {
            "objective": objective,
            "precision": "fp32",  # as the reading that it is compared with, also where the CPU gains by bf16
            "output": str(tmp_path / "model"),
            "examples": str(mined.path),
            "teacher_temperature": 2.0,
            **inputs,
            **short,
        }
    )
    made = train(given)
    assert "1 of 6 queries have too few passages with a teacher's score, and are left out" in capsys.readouterr().err

    store, model = PassageStore(world / "corpus"), DualEncoder.load(world / "encoder")
    examples, texts = method_of(given).read(given, store)
    (part,) = Sampler(examples, given).step(0)
    rows = np.concatenate([part.positives, part.negatives], axis=1)
    with torch.no_grad():
        q = model.encode_queries(model.tokenize_queries(texts.queries(part.query)).pad(model.tokenizer.pad_id)).double().numpy()
        p = model.encode_passages(model.tokenize_passages(store.passages(rows.ravel())).pad(model.tokenizer.pad_id)).double().numpy()
    s = np.einsum("nd,nmd->nm", q, p.reshape(*rows.shape, -1))
    t = np.array([[logits[f"q{query}", row] for row in listed] for query, listed in zip(part.query, rows.tolist(), strict=True)]) / 2
    if objective == "margin-mse":
        expected = np.mean(((s[:, :1] - s[:, 1:]) - (t[:, :1] - t[:, 1:])) ** 2)
    else:
        student, teacher = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (s, t))
        expected = np.mean(np.sum(teacher * np.log(teacher / student), axis=1))
    (line,) = read_history(made.path / "history.jsonl")
    assert line["loss"] == pytest.approx(expected, rel=1e-4)


def test_bad_input_is_refused_before_anything_is_scored(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no trained re-ranker") as caught:
        label(settings(world, tmp_path / "out", model=str(world / "encoder")))
    assert str(world / "encoder") in str(caught.value)
    assert not (tmp_path / "out").exists()
    make_queries(tmp_path / "few", 4)
    with pytest.raises(InputError, match="names query 'q4'"):
        label(settings(world, tmp_path / "out", queries=str(tmp_path / "few")))
