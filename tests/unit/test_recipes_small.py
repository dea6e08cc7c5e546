"""The settings of a stage at small size: a training with refresh still learns from negatives that it found itself; no margins."""

from pathlib import Path

import pytest

from raydense.data.importing import import_dataset
from raydense.data.settings import ImportSettings
from raydense.forecast import Known
from raydense.mining.settings import MineSettings
from raydense.recipes.recipe import Recipe
from raydense.recipes.small import Small
from raydense.storage import Draft, Place
from raydense.training.generations import Generations
from raydense.training.settings import TrainSettings

RECIPE = """
stages:
  data: {do: sample, passages: 3000}
  retriever: {do: train, objective: retriever, model: tiny, corpus: $data/corpus, queries: $data/queries, examples: $data/examples,
    batch_size: 64, epochs: 4, track: wandb, refresh: {every: 1, unit: epochs, mode: MODE, absolute_margin: 0.1}}
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("steps", [2, 3, 40])
def test_a_training_renews_its_negatives_at_small_size_too(tmp_path: Path, mode: str, steps: int) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("MODE", mode))
    recipe = Recipe.read(tmp_path / "recipe.yaml", tmp_path / "out")
    stage = recipe.stages[-1]
    made_small = Draft.open(tmp_path / "small/data/examples", "examples", {})
    made_small.commit("examples.parquet", lambda path: path.touch(), 64)
    made_small.finish(64)
    settings = Small(Place.of(tmp_path / "small"), recipe.stages, Known(), 0.1, 0.1, 1, {"retriever": steps}).settings(stage)
    assert isinstance(settings, TrainSettings)
    assert settings.track == "none"
    assert steps <= settings.max_steps <= max(4, steps)
    refresh = settings.refresh  # type: ignore[attr-defined]
    assert refresh.unit == "steps"
    assert refresh.margins == {}
    made = Generations(Place.of(tmp_path), settings.max_steps, int(refresh.every), int(mode == "async"))
    assert made.last >= 1


def test_negatives_are_mined_without_margins_to_positives_that_are_drawn_at_random(tmp_path: Path) -> None:
    mine = "do: mine, run: $found, qrels: $data/qrels/train, relative_margin: 0.05, max_score: 0.7, shortage: drop"
    (tmp_path / "recipe.yaml").write_text(f"""
stages:
  data: {{do: sample, passages: 3000}}
  words: {{do: index, kind: bm25, corpus: $data/corpus}}
  found: {{do: search, index: $words, queries: $data/queries}}
  negatives: {{{mine}, corpus: $data/corpus, queries: $data/queries}}
""")
    recipe = Recipe.read(tmp_path / "recipe.yaml", tmp_path / "out")
    settings = Small(Place.of(tmp_path / "small"), recipe.stages, Known(), 0.1, 0.1, 1).settings(recipe.stages[-1])
    assert isinstance(settings, MineSettings)
    assert (settings.margins, settings.shortage) == ({}, "keep")


def test_a_source_is_cut_without_its_runs_and_triples(tmp_path: Path) -> None:
    """They name passages that the first part of a collection does not have, and are larger than it."""
    source = tmp_path / "raw"
    source.mkdir()
    (source / "collection.tsv").write_text("".join(f"{i}\tpassage {i}\n" for i in range(1_000)))
    (source / "queries.train.tsv").write_text("1\tquery\n")
    (source / "qrels.train.tsv").write_text("1\t0\t999\t1\n")
    (source / "run.bm25.train.tsv").write_text("1\t999\t1\n")
    (source / "top1000.dev").write_text("1\t999\tquery\tpassage 999\n")
    (source / "qidpidtriples.train.full.2.tsv").write_text("1\t999\t998\n")
    (tmp_path / "recipe.yaml").write_text(f"stages: {{data: {{do: import, format: msmarco, input: {source}}}}}\n")
    stages = Recipe.read(tmp_path / "recipe.yaml", tmp_path / "out").stages
    settings = Small(Place.of(tmp_path / "small"), stages, Known(), 0.01, 0.1, 1).settings(stages[0])
    assert isinstance(settings, ImportSettings)
    made = import_dataset(settings)
    assert made.rows < 999
    assert {file.name for file in Path(settings.input).iterdir()} == {"collection.tsv", "queries.train.tsv", "qrels.train.tsv"}
    assert (Path(settings.output) / "qrels" / "train").is_dir()
