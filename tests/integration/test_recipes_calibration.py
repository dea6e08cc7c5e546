"""`raydense plan --calibrate`: every stage runs for real on slices; sizes agree with what a run makes, and nothing is left behind."""

import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from nodes import several_nodes

from raydense.recipes import calibration
from raydense.recipes.calibration import calibrate
from raydense.recipes.planning import Prices, total_of
from raydense.recipes.rates import stored_rates
from raydense.recipes.recipe import Recipe, plan, run

RECIPE = """
seed: 1
defaults: {corpus: $data/corpus, queries: $data/queries}
stages:
  data: {do: sample, passages: 3000, train_queries: 600, dev_queries: 50, test_queries: 200}
  words: {do: index, kind: bm25}
  found: {do: search, index: $words, k: 50}
  negatives: {do: mine, run: $found, qrels: $data/qrels/train, negatives: 4, depth: 50}
  report: {do: evaluate, run: [BM25=$found], qrels: $data/qrels/test, metrics: [RR@10]}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: object) -> Recipe:
    monkeypatch.setenv("RAYDENSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "r.yaml").write_text(RECIPE)
    return Recipe.read(tmp_path / "r.yaml", tmp_path / "out")


def test_a_calibrated_plan_has_the_sizes_of_a_run_and_leaves_nothing_behind(recipe: Recipe, tmp_path: Path) -> None:
    measured = calibrate(recipe, 600.0)
    assert not (tmp_path / "out").exists()
    rows = {row["stage"]: row["estimate"] for row in plan(recipe, measured, Prices(0, 1))}
    for stage, figures in rows.items():
        assert figures["seconds"] > 0, stage
        assert figures["error"] is not None, stage
        assert figures["cost"] >= 0, stage
    assert set(stored_rates()) >= {"sample", "index bm25", "search bm25", "mine", "evaluate"}
    kept = json.loads((tmp_path / "cache" / "calibrated.json").read_text())
    assert set(kept) <= {"sample", "index bm25", "search bm25", "mine", "evaluate"}, "those that so small a data set shows"
    for stage, artifact, _ in run(recipe):
        disk = sum(file.stat().st_size for file in Path(artifact.place.located).rglob("*") if file.is_file())
        assert rows[stage.name]["output_bytes"] == pytest.approx(disk, rel=0.35, abs=40_000), stage.name
    rows_left = plan(recipe)
    assert total_of(rows_left)["seconds"] == 0


def test_a_stage_that_reads_what_cannot_be_cut_keeps_its_stored_rate(recipe: Recipe, tmp_path: Path) -> None:
    list(run(recipe))
    stage = f"do: search, index: {tmp_path / 'out/words'}, queries: {tmp_path / 'out/data/queries'}, k: 7"
    (tmp_path / "own.yaml").write_text(f"stages: {{again: {{{stage}}}}}")
    own = Recipe.read(tmp_path / "own.yaml", tmp_path / "other")
    [row] = plan(own, calibrate(own, 60.0))
    assert row["estimate"]["error"] is None
    assert not (tmp_path / "other").exists()


def test_an_interrupted_calibration_removes_its_folder_and_what_a_killed_one_left(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "out" / ".calibration-999999999"
    left.mkdir(parents=True)
    (left / "file").touch()
    seen = []

    def interrupt(*arguments: object) -> None:
        seen.extend(os.listdir(tmp_path / "out"))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(calibration, "_note", interrupt)
    with pytest.raises(KeyboardInterrupt):
        calibrate(recipe, 600.0)
    assert seen == [f".calibration-{os.getpid()}"]
    assert os.listdir(tmp_path / "out") == []
    assert not (tmp_path / "cache" / "calibrated.json").exists()


def test_a_folder_whose_judgements_are_in_another_order_than_its_queries_is_calibrated(recipe: Recipe, tmp_path: Path) -> None:
    folder, many = tmp_path / "beir", 2_000
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"p{i}", "title": "", "text": f"passage {i} of the sea"} for i in range(many)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": f"which passage is {i}"}) + "\n" for i in range(many))
    )
    lines = [f"q{i}\tp{i}\t1\n" for i in reversed(range(many))]
    (folder / "qrels" / "train.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines]))
    (tmp_path / "own.yaml").write_text(
        f"stages:\n  data: {{do: import, format: beir, input: {folder}}}\n  words: {{do: index, kind: bm25, corpus: $data/corpus}}\n"
        "  found: {do: search, index: $words, queries: $data/queries, qrels: $data/qrels/train, k: 5}\n"
    )
    own = Recipe.read(tmp_path / "own.yaml", tmp_path / "out")
    assert [row["estimate"]["error"] is not None for row in plan(own, calibrate(own, 60.0))] == [True, True, True]


@pytest.mark.long
def test_nodes_that_a_cluster_adds_for_the_slices_are_counted(tmp_path: Path) -> None:
    """The head has no CPUs, as in a cluster that has scaled down, and the node comes when the first slice waits for it."""
    (tmp_path / "r.yaml").write_text(RECIPE)
    words = ["plan", str(tmp_path / "r.yaml"), "--output", str(tmp_path / "out"), "--calibrate", "--calibrate-seconds", "600", "--json"]
    words += ["--price-cpu-hour", "100"]
    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as folder,
        several_nodes(Path(folder), 0, RAYDENSE_CACHE=str(tmp_path / "cache")) as cluster,
    ):
        driver = cluster.driver("-m", "raydense", *words, log=tmp_path / "log")
        while not list(tmp_path.glob("out/.*/slice-1")):
            assert driver.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        cluster.add()
        assert driver.wait(300) == 0, (tmp_path / "log").read_text()
    [line] = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    assert json.loads(line)["total"]["cost"] > 0
