"""The commands of docs/guides/training.md, run in the order shown, on small data and a tiny model, with few steps each."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import raydense as rd
from raydense.cli import main
from raydense.inference.rerank import probability
from raydense.models.tiny import make_tiny_encoder

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.long]

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "training.md").read_text()
SMALL = {
    "sample": "--passages 300 --train-queries 24 --dev-queries 6 --test-queries 6",
    "train": "--max-steps 2 --batch-size 4",
    "train ance": "--epochs 2 --batch-size 8",
    "generate": "--queries-each 1",
    "pretrain": "--max-steps 2 --batch-size 4",
}


def commands() -> list[list[str]]:
    """The words of each command of raydense that the guide shows."""
    shown = "".join(re.findall(r"^```sh\n(.*?)^```", GUIDE, re.M | re.S)).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in shown if line.startswith("raydense ")]


def certain() -> list[str]:
    """Thresholds that part the candidates of one query at least: a re-ranker of two steps scores all of them nearly alike."""
    found = rd.Artifact.open("runs/scored", "run").head(10_000)
    scores = [of_one["score"][of_one["rank"] <= 50] for _, of_one in found.groupby("query_id")]
    low, high = probability(np.quantile(max(scores, key=np.ptp), [0.4, 0.6]))
    return ["--s-pos", repr(float(high)), "--s-neg", repr(float(low))]


def test_the_commands_run_as_they_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = {}
    for words in commands():
        output = words[words.index("--output") + 1]
        if words[0] == "index" and not Path("MODEL_DIR").exists():
            make_tiny_encoder(rd.Artifact.open("data/corpus", "corpus").head(300)["text"], "MODEL_DIR", seed=1)
        small = SMALL.get(f"{words[0]} {output}", SMALL.get(words[0], ""))
        more = certain() if words[0] == "label" else small.split()
        with pytest.raises(SystemExit) as ended:
            main([*(word.replace("GENERATOR_DIR", "tiny") for word in words), *more])
        assert ended.value.code == 0, words
        made[output] = rd.Artifact.open(output).kind
    models = "model model-2 by-topics ance model-positives ce model-denoised pair-1 pair-2 encoder generator"
    assert {name for name, kind in made.items() if kind == "model"} == set(models.split())
    assert [rd.Artifact.open(f"joint/{part}").kind for part in ("retriever", "reranker")] == ["model", "model"]
    assert rd.Artifact.open("ance").summary["generations"]
