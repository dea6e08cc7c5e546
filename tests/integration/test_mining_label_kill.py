"""kill -9 in the middle of label, while the teacher scores: the second run keeps what was scored and equals an undisturbed run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import numpy as np
import pyarrow as pa
import pytest
import torch

import raydense.mining.label as labelling
from raydense.data.store import PassageStore
from raydense.mining.label import label
from raydense.mining.settings import LabelSettings
from raydense.models.cross_encoder import CrossEncoder
from tests.inference_world import file_bytes, make_corpus, make_queries, make_reranker, make_retriever, write_table
from tests.killing import kill_once_committed

QUERIES, DEPTH, PASSAGES, BLOCK = 120, 30, 300, 4
LABEL = """
import sys
from raydense.data.store import PassageStore
from raydense.mining.label import label
from raydense.models.cross_encoder import CrossEncoder
from raydense.mining.settings import LabelSettings
folder, output, middle = sys.argv[1:]
inputs = {name: f"{folder}/{name}" for name in ("run", "model", "corpus", "queries")}
label(LabelSettings(output=output, s_pos=float(middle), s_neg=float(middle) - 1e-6, depth=30, block=4, **inputs))
"""


pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("label-kill")
    make_reranker(root / "model", make_retriever(root / "encoder"))
    make_corpus(root / "corpus", PASSAGES, 100)
    make_queries(root / "queries", QUERIES)
    rng = np.random.default_rng(2)
    hits = np.concatenate([rng.permutation(PASSAGES)[:DEPTH] for _ in range(QUERIES)])
    rank = np.tile(np.arange(1, DEPTH + 1), QUERIES)
    ids = [f"q{i}" for i in np.repeat(np.arange(QUERIES), DEPTH)]
    run = pa.table({"query_id": ids, "passage_id": [f"p{i}" for i in hits], "rank": rank, "score": -rank.astype(float)})
    write_table(root / "run", "run", run)
    return root


@pytest.fixture(scope="module")
def middle(world: Path) -> float:
    """The median of some probabilities of this untrained teacher, which lie close to each other."""
    model = CrossEncoder.load(world / "model")
    pairs = model.tokenize_pairs(["red fox", "old bridges"] * 20, PassageStore(world / "corpus").passages(np.arange(40)))
    with torch.inference_mode():
        return round(float(model(pairs.pad(model.tokenizer.pad_id)).sigmoid().median()), 4)


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """The scored files; one written again has another inode and time."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.glob("run-*.parquet")}


def test_a_killed_label_continues_and_equals_an_undisturbed_one(
    world: Path, middle: float, joining: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = world / "killed"
    scores = output / ".work" / "scores"
    driver = forked.Popen([sys.executable, "-c", LABEL, str(world), str(output), str(middle)], env=joining)
    kill_once_committed(driver, scores / ".work" / "commits", "*.json", 3)
    recorded = [json.loads(record.read_text())["path"] for record in (scores / ".work" / "commits").glob("*.json")]
    kept = stamps(scores)
    assert 3 <= len(recorded) < QUERIES // BLOCK
    assert not (output / "manifest.json").exists()

    seen: dict[str, tuple[int, int]] = {}
    inputs = {name: str(world / name) for name in ("run", "model", "corpus", "queries")}
    settings = LabelSettings(output=str(output), s_pos=middle, s_neg=middle - 1e-6, depth=DEPTH, block=BLOCK, **inputs)
    rerank = labelling.rerank

    def watched(asked: object) -> object:
        made = rerank(asked)  # type: ignore[arg-type]
        seen.update(stamps(made.path))
        return made

    monkeypatch.setattr(labelling, "rerank", watched)
    continued = label(settings)
    assert len(seen) == QUERIES // BLOCK
    assert [name for name in recorded if seen[name] != kept[name]] == [], "what was recorded is made again"
    monkeypatch.undo()
    whole = label(settings.model_copy(update={"output": str(world / "whole")}))
    assert file_bytes(continued.path) == file_bytes(whole.path)
    assert continued.summary["candidates"]["pseudo-positives"] > 0 < continued.summary["candidates"]["confident negatives"]
    assert continued.fingerprint == whole.fingerprint
    assert continued.summary == whole.summary
