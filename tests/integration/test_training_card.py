"""What the card of a trained model says: that it is a card of the Hub, names what the model was trained from and its metrics, and no path."""

from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from training_data import make_training_data

import raydense as rd
from raydense.storage import Place
from raydense.training.history import read_history

FOLDERS = {"corpus": "sample/corpus", "queries": "sample/queries", "examples": "examples", "dev.qrels": "sample/qrels/dev"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """A retriever trained with a dev set, and exported."""
    root = tmp_path_factory.mktemp("card")
    data = make_training_data(root)
    dev = {"qrels": str(root / "sample/qrels/dev"), "every": 2}
    made = rd.train(data.settings(Place.of(str(root / "model")), max_steps=6, dev=dev))
    rd.export(rd.ExportSettings(format="hub", model=made, license="mit", output=root / "hub"))
    return root


def test_the_card_says_what_the_model_was_trained_from_and_how_it_did(world):
    made = rd.Artifact.open(world / "model")
    card = ModelCard((world / "model" / "README.md").read_text("utf-8"))
    assert card.data.library_name == "sentence-transformers"
    inputs = made.manifest["made_from"]["inputs"]
    assert inputs.keys() == {"model", "corpus", "queries", "examples", "dev.qrels"}
    for key in inputs.keys() - {"model"}:
        rows = rd.Artifact.open(world / FOLDERS[key]).rows
        assert f"| {key} | {rows:,} rows, made by `{'test' if key == 'examples' else 'sample'}` | `{inputs[key]}` |" in card.text
    measured = [line for line in read_history(world / "model" / "history.jsonl") if "mrr@10" in line]
    assert [line["step"] for line in measured] == [2, 4, 6]
    for line in measured:
        assert f"| {line['step']} | {line['mrr@10']:.4f} | {line['ndcg@10']:.4f} | {line['recall@100']:.4f} |" in card.text
    best = made.summary["dev"]["mrr@10"]
    assert f"mrr@10 of the dev queries was {best:.4f}" in card.text
    block = card.text.partition("```yaml\n")[2].partition("```")[0]
    settings = {key: value for key, value in made.manifest["made_from"]["settings"].items() if value is not None}
    assert yaml.safe_load(block) == settings
    assert settings["seed"] == 42


def test_no_path_of_the_machine_is_in_a_card(world):
    for folder in ("model", "hub"):
        text = (world / folder / "README.md").read_text("utf-8")
        assert str(world) not in text
        assert "/tmp" not in text
    card = ModelCard((world / "hub" / "README.md").read_text("utf-8"))
    assert card.data.license == "mit"
    assert "| corpus | `corpus` |" in card.text
    assert "| dev.qrels | `dev` |" in card.text
    versions = rd.Artifact.open(world / "model").manifest["versions"]
    assert f"torch {versions['torch']}" in card.text
