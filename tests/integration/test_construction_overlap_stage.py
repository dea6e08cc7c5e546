"""The whole of `overlap` on tiny models, with planted duplicates: against all pairs, scored by the models alone; killed and continued."""

from __future__ import annotations

import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raydense.construction import question_search
from raydense.construction.overlap import overlap
from raydense.construction.settings import OverlapSettings
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.storage import Artifact
from tests.inference_world import WORDS, file_bytes, make_reranker, make_retriever, score_error, write_table
from tests.killing import kill_once_committed

pytestmark = pytest.mark.usefixtures("ray_cluster")

TRAIN, DEV, TEST = 60, 12, 9
OVERLAP = """
import sys
from itertools import pairwise
from raydense.construction.overlap import overlap
from raydense.construction.settings import OverlapSettings
root, output, threshold = sys.argv[1:]
qrels = [f"{root}/qrels/dev", f"{root}/qrels/test"]
folders = {"queries": f"{root}/queries", "train_qrels": f"{root}/qrels/train", "model": f"{root}/encoder"}
overlap(OverlapSettings(output=output, against=qrels, threshold=float(threshold), depth=60, **folders))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dev queries 0 to 3 are training queries in capitals, 4 to 7 have one more word; two training queries have one text."""
    root = tmp_path_factory.mktemp("overlap")
    make_reranker(root / "reranker", make_retriever(root / "encoder"), steep=True)
    rng = np.random.default_rng(4)
    texts = {f"t{i}": " ".join(rng.choice(WORDS, 7)) for i in range(TRAIN)}
    texts["t1"] = f" {texts['t0'].title()}"
    texts |= {f"d{i}": texts[f"t{2 * i}"].upper() for i in range(4)}
    texts |= {f"d{i}": f"{texts[f't{2 * i}']} home" for i in range(4, 8)}
    texts |= {f"d{i}": " ".join(rng.choice(WORDS, 7)) for i in range(8, DEV)}
    texts |= {f"e{i}": " ".join(rng.choice(WORDS, 7)) for i in range(TEST)}
    write_table(root / "queries", "queries", pa.table({"query_id": [*texts], "text": [*texts.values()]}))
    for name, letter, count in (("train", "t", TRAIN), ("dev", "d", DEV), ("test", "e", TEST)):
        ids = [f"{letter}{i}" for i in range(count)]
        write_table(root / "qrels" / name, "qrels", pa.table({"query_id": ids, "passage_id": ["p0"] * count, "relevance": [1] * count}))
    return root


def asked(world: Path, output: Path, **more: object) -> OverlapSettings:
    qrels = world / "qrels"
    folders = {"queries": str(world / "queries"), "train_qrels": str(qrels / "train"), "against": [str(qrels / "dev"), str(qrels / "test")]}
    return OverlapSettings.read({"output": str(output), "depth": TRAIN, **folders, **more})


def texts_of(world: Path, letters: str) -> dict[str, str]:
    return {row["query_id"]: row["text"] for row in read_table(world / "queries", "queries").to_pylist() if row["query_id"][0] in letters}


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def cosines(world: Path) -> dict[tuple[str, str], float]:
    """Of all pairs, by the model alone."""
    model = DualEncoder.load(world / "encoder")

    def unit(texts: dict[str, str]) -> np.ndarray:
        with torch.no_grad():
            vectors = model.encode_queries(model.tokenize_queries([*texts.values()]).pad(model.tokenizer.pad_id)).double().numpy()
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    other, train = texts_of(world, "de"), texts_of(world, "t")
    found = unit(other) @ unit(train).T
    return {(q, t): float(found[i, j]) for i, q in enumerate(other) for j, t in enumerate(train)}


def same(world: Path) -> set[tuple[str, str]]:
    other, train = texts_of(world, "de"), texts_of(world, "t")
    return {(q, t) for q in other for t in train if plain(other[q]) == plain(train[t])}


def between(values: list[float], most: int) -> float:
    """A threshold in the middle of a wide gap below at most `most` values, so that rounding decides nothing."""
    high = sorted(values, reverse=True)[: most + 1]
    gaps = [(a - b, (a + b) / 2) for a, b in pairwise(high)]
    return max(gaps[most // 3 :])[1]


@pytest.fixture(scope="module")
def middle(world: Path) -> float:
    found, exact = cosines(world), same(world)
    return between([value for pair, value in found.items() if pair not in exact], 30)


def pairs_of(made: Artifact) -> dict[tuple[str, str], float]:
    return {(p["query_id"], p["train_query_id"]): p["similarity"] for p in pq.read_table(made.file("pairs.parquet")).to_pylist()}


def test_a_retriever_finds_what_all_pairs_have(world: Path, middle: float) -> None:
    made = overlap(asked(world, world / "dense-out", model=str(world / "encoder"), threshold=middle, concurrency=(1, 1)))
    found, exact = pairs_of(made), same(world)
    expected = {pair: value for pair, value in cosines(world).items() if value > middle or pair in exact} | dict.fromkeys(exact, 1.0)
    assert exact >= {("d0", "t0"), ("d0", "t1"), ("d1", "t2"), ("d2", "t4"), ("d3", "t6")}
    assert len(expected) > len(exact)
    assert found == {pair: pytest.approx(value, abs=1e-5) for pair, value in expected.items()}
    removed = {train for _, train in expected}
    assert read_table(made.path / "qrels" / "train", "qrels")["query_id"].to_pylist() == [
        f"t{i}" for i in range(TRAIN) if f"t{i}" not in removed
    ]
    assert set(read_table(made.path / "qrels" / "dev-overlap", "qrels")["query_id"].to_pylist()) == {q for q, _ in expected if q[0] == "d"}
    assert made.summary["removed"] == len(removed)
    assert not (made.path / ".work").exists()
    page = made.file("report.md").read_text()
    assert f"are similar to {len(removed)} training queries" in page
    assert page.count("\n| 0.") > 5, "the histogram and other thresholds"


def test_the_bytes_do_not_depend_on_the_actors(world: Path, middle: float) -> None:
    one = overlap(asked(world, world / "one", model=str(world / "encoder"), threshold=middle, concurrency=(1, 1)))
    two = overlap(asked(world, world / "two", model=str(world / "encoder"), threshold=middle, concurrency=(2, 2), token_budget=64))
    assert file_bytes(one.path) == file_bytes(two.path)
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize("encoder", [True, False], ids=["candidates of a retriever", "candidates of BM25"])
def test_a_reranker_scores_the_candidates(world: Path, encoder: bool) -> None:
    model, other, train = CrossEncoder.load(world / "reranker"), texts_of(world, "de"), texts_of(world, "t")
    pairs = [(q, t) for q in other for t in train if t != "t1"]  # t0 stands for it in the index
    with torch.no_grad():
        tokens = model.tokenize_pairs([other[q] for q, _ in pairs], [train[t] for _, t in pairs])
        probability = dict(zip(pairs, model(tokens.pad(model.tokenizer.pad_id)).double().sigmoid().tolist(), strict=True))
    probability |= {(q, "t1"): probability[q, "t0"] for q in other}
    exact = same(world)
    threshold = between([value for pair, value in probability.items() if pair not in exact], 60)
    given = {"model": str(world / "reranker"), "threshold": threshold, "encoder": str(world / "encoder") if encoder else None}
    made = overlap(asked(world, world / f"scored-{encoder}", **given))
    found = pairs_of(made)
    if not encoder:  # BM25 finds only queries with a word in common; of those that it found, the model decides
        words = {
            name: set(plain(text).split()) - {"the", "of", "a", "in", "and", "no", "what", "when"}
            for name, text in {**other, **train}.items()
        }
        probability = {(q, t): value for (q, t), value in probability.items() if words[q] & words[t] or (q, t) in exact}
    error = score_error() * max(value * (1 - value) for value in probability.values()) + 2**-23  # of a probability, which is a float32
    expected = {pair for pair, value in probability.items() if value > threshold} | exact
    sure = {pair for pair, value in probability.items() if abs(value - threshold) > error} | exact
    assert len(expected) > len(exact)
    assert len(sure - expected) > len(expected), "most pairs are decided, whatever the processor rounds"
    assert set(found) & sure == expected & sure
    assert set(found) <= probability.keys() | exact
    assert all(found[pair] == pytest.approx(1.0 if pair in exact else probability[pair], abs=error) for pair in found)


def test_a_killed_overlap_continues_and_equals_an_undisturbed_one(world: Path, middle: float, joining: dict[str, str]) -> None:
    output = world / "killed"
    driver = forked.Popen([sys.executable, "-c", OVERLAP, str(world), str(output), str(middle)], env=joining)
    kill_once_committed(driver, output / ".work" / "dense", "manifest.json", 1)
    assert not (output / "manifest.json").exists()
    settings = asked(world, output, model=str(world / "encoder"), threshold=middle)
    with pytest.raises(InputError, match="was made from something else"):
        overlap(settings.model_copy(update={"threshold": 0.123}))
    continued = overlap(settings)
    whole = overlap(asked(world, world / "whole", model=str(world / "encoder"), threshold=middle))
    assert file_bytes(continued.path) == file_bytes(whole.path)
    assert continued.fingerprint == whole.fingerprint
    assert continued.summary == whole.summary


@pytest.mark.parametrize(("stage", "kind"), [("encode", "encoder"), ("rerank", "reranker")])
def test_a_model_that_is_replaced_meanwhile_is_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, kind: str
) -> None:
    folder, run = tmp_path / "model", getattr(question_search, stage)
    shutil.copytree(world / kind, folder)

    def replacing(settings: Any) -> Artifact:
        shutil.rmtree(folder)
        other = make_retriever(folder if kind == "encoder" else tmp_path / "encoder", seed=9)
        if kind == "reranker":
            make_reranker(folder, other)
        return run(settings)

    monkeypatch.setattr(question_search, stage, replacing)
    with pytest.raises(InputError, match="model: was replaced while a stage was reading it"):
        overlap(asked(world, tmp_path / "out", model=str(folder), threshold=0.5, depth=3))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_model_of_the_wrong_kind_is_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a re-ranker"):
        overlap(asked(world, tmp_path / "out", model=str(world / "reranker"), encoder=str(world / "reranker"), threshold=0.5))
    with pytest.raises(InputError, match="is not used: model is a retriever"):
        overlap(asked(world, tmp_path / "out", model=str(world / "encoder"), encoder=str(world / "encoder"), threshold=0.5))
    with pytest.raises(InputError, match="no such"):
        overlap(asked(world, tmp_path / "out", model=str(world / "nothing"), threshold=0.5))
    assert not (tmp_path / "out").exists()
