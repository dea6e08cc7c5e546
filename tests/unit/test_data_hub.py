"""A model exported for the Hub: what other libraries load from it is what the artifact gives, and its card is one that the Hub reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from huggingface_hub import ModelCard
from inference_world import WORDS, make_retriever, write_table
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer

import raydense as rd
from raydense.errors import InputError
from raydense.storage import Draft

TEXTS = [" ".join(WORDS[i : i + 6]) for i in range(12)]


def made(folder: Path, model: Any, made_from: dict[str, Any] | None = None, **summary: Any) -> Path:
    """A model artifact as a training commits it, with files that others do not need."""
    draft = Draft.open(folder, "model", {"stage": "train", "settings": {}, "inputs": {}} | (made_from or {}))
    draft.commit_tree(model.save)
    draft.commit("history.jsonl", lambda path: path.write_text('{"step": 1}\n'), 1)
    draft.commit("logs/events.out.tfevents.0.raydense", lambda path: path.write_text("x"), 1)
    draft.finish(0, **summary)
    return folder


def report(folder: Path, runs: dict[str, list[str]], **changes: Any) -> rd.Artifact:
    """Runs of one query, evaluated."""
    folder.mkdir()
    write_table(folder / "qrels", "qrels", pa.table({"query_id": ["q"], "passage_id": ["b"], "relevance": [1]}))
    for name, found in runs.items():
        hits = {
            "query_id": ["q"] * len(found),
            "passage_id": found,
            "rank": range(1, len(found) + 1),
            "score": np.arange(len(found))[::-1] * 1.0,
        }
        write_table(folder / name, "run", pa.table({**hits, "rank": list(hits["rank"])}))
    given = {"run": [folder / name for name in runs], "qrels": folder / "qrels", "metrics": "RR@10 R@1", **changes}
    return rd.evaluate(rd.EvaluateSettings(**given, output=folder / "report"))


def exported(model: Path, output: Path, **more: Any) -> Path:
    return Path(str(rd.export(rd.ExportSettings(format="hub", model=model, output=output, **more))))


@torch.no_grad()
def vectors(folder: Path) -> list[np.ndarray]:
    """Of queries and of passages, by raydense."""
    model = rd.DualEncoder.load(folder)
    pad = model.tokenizer.pad_id
    both = model.encode_queries(model.tokenize_queries(TEXTS).pad(pad)), model.encode_passages(model.tokenize_passages(TEXTS).pad(pad))
    return [one.numpy() for one in both]


def test_a_retriever_gives_the_same_vectors_everywhere(tmp_path):
    plain = make_retriever(tmp_path / "plain")
    model = made(tmp_path / "model", rd.DualEncoder.load(plain, query_prefix="query: ", normalize=True, pooling="cls"))
    folder = exported(model, tmp_path / "hub")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "README.md",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
        "raydense.json",
        "1_Pooling/config.json",
    } <= files
    assert not [name for name in files if "manifest" in name or "history" in name or "events" in name]
    for ours, again in zip(vectors(model), vectors(folder), strict=True):
        np.testing.assert_array_equal(again, ours)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode_query(TEXTS), vectors(model)[0], atol=1e-6)
    np.testing.assert_allclose(theirs.encode_document(TEXTS), vectors(model)[1], atol=1e-6)
    assert np.abs(vectors(model)[0] - vectors(model)[1]).max() > 1e-3, "the prefix has an effect"


def test_two_encoders_load_together_and_each(tmp_path):
    lengths = {"query_length": 5, "passage_length": 12}
    two = rd.DualEncoder.load(make_retriever(tmp_path / "plain"), shared=False, query_prefix="ask: ", normalize=True, **lengths)
    with torch.no_grad():
        for weights in two.query_encoder.parameters():
            weights.mul_(1.1)
    model = made(tmp_path / "model", two)
    folder = exported(model, tmp_path / "hub")
    for name, side, ours in zip(("query_encoder", "passage_encoder"), ("encode_query", "encode_document"), vectors(model), strict=True):
        theirs = SentenceTransformer(str(folder / name), device="cpu", local_files_only=True)
        np.testing.assert_allclose(getattr(theirs, side)(TEXTS), ours, atol=1e-5)
        assert "A text becomes a vector" in (folder / name / "README.md").read_text("utf-8")
    both = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(both.encode_query(TEXTS), vectors(model)[0], atol=1e-5)
    np.testing.assert_allclose(both.encode_document(TEXTS), vectors(model)[1], atol=1e-5)
    for ours, again in zip(vectors(model), vectors(folder), strict=True):
        np.testing.assert_array_equal(again, ours)
    assert "# Two encoders" in ModelCard((folder / "README.md").read_text("utf-8")).text


def test_a_reranker_gives_the_same_scores_everywhere(tmp_path):
    torch.manual_seed(5)
    ours = rd.CrossEncoder.load(make_retriever(tmp_path / "plain"), length=40)
    with torch.no_grad():
        ours.model.classifier.weight.mul_(50)
        scores = ours(ours.tokenize_pairs(TEXTS, TEXTS[::-1]).pad(ours.tokenizer.pad_id)).numpy()
    folder = exported(made(tmp_path / "model", ours), tmp_path / "hub")
    theirs = TheirCrossEncoder(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.predict(list(zip(TEXTS, TEXTS[::-1], strict=True))), scores, atol=1e-5)
    assert np.ptp(scores) > 0.001
    assert rd.CrossEncoder.load(folder).length == 40
    data = ModelCard((folder / "README.md").read_text("utf-8")).data
    assert (data.pipeline_tag, data.library_name) == ("text-ranking", "sentence-transformers")


def test_the_card_is_read_by_the_library_of_the_hub(tmp_path):
    measured = report(tmp_path / "measured", {"dense": ["a", "b", "c"]}, title="SciFact test")
    of_hub = {"commits": {"model": "hf://owner/base-model@0123abc"}, "inputs": {"model": "f" * 32}}
    given = {"corpus": "data/scifact/corpus", "model": "owner/base-model"}
    model = made(tmp_path / "model", rd.DualEncoder.load(make_retriever(tmp_path / "plain")), of_hub, inputs=given)
    more = {"license": "apache-2.0", "report": measured, "trained_on": ["mteb/scifact", "squad"]}
    folder = exported(model, tmp_path / "my-retriever", **more)
    card = ModelCard((folder / "README.md").read_text("utf-8"))
    assert (card.data.license, card.data.base_model, card.data.datasets) == ("apache-2.0", "owner/base-model", ["mteb/scifact", "squad"])
    assert (card.data.library_name, card.data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert card.data.model_name == "my-retriever"
    found = {one.metric_name: (one.metric_type, one.metric_value, one.dataset_name, one.dataset_type) for one in card.data.eval_results}
    assert found == {"RR@10": ("rr_at_10", 0.5, "SciFact test", "scifact-test"), "R@1": ("r_at_1", 0.0, "SciFact test", "scifact-test")}
    assert "| corpus | `data/scifact/corpus` |" in card.text
    assert "| RR@10 | 0.5000 |" in card.text
    assert rd.Artifact.open(model).fingerprint in card.text
    assert "\n---\n" not in card.text, "one front matter"
    again = exported(model, tmp_path / "more" / "my-retriever", **more)
    assert (again / "README.md").read_bytes() == (folder / "README.md").read_bytes()


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(tmp_path):
    two = report(tmp_path / "two", {"dense": ["a", "b"], "words": ["b"]})
    model = made(tmp_path / "model", rd.DualEncoder.load(make_retriever(tmp_path / "plain")))
    with pytest.raises(InputError, match="has the runs dense, words; evaluate the run of this model alone"):
        exported(model, tmp_path / "hub", report=two)
    with pytest.raises(InputError, match="format hub does not write nothing; give model"):
        rd.export(rd.ExportSettings(format="hub", output=tmp_path / "hub"))
    with pytest.raises(InputError, match="format hub does not write corpus with model"):
        exported(model, tmp_path / "hub", corpus=tmp_path / "two" / "qrels")
    with pytest.raises(InputError, match="format beir does not use trained_on"):
        rd.ExportSettings(format="beir", corpus=tmp_path, trained_on=["squad"], output=tmp_path / "hub")
    with pytest.raises(InputError, match="format beir does not write model"):
        rd.export(rd.ExportSettings(format="beir", model=model, output=tmp_path / "hub"))
    with pytest.raises(InputError, match=r"no manifest\.json of raydense"):
        exported(tmp_path / "plain", tmp_path / "hub")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match="was written to after raydense made it"):
        exported(model, tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_an_older_model_without_a_card_gets_a_short_one(tmp_path):
    draft = Draft.open(tmp_path / "model", "model", {"stage": "train"})

    def save(folder: Path) -> None:
        rd.CrossEncoder.load(make_retriever(tmp_path / "plain")).save(folder)
        (folder / "README.md").unlink()

    draft.commit_tree(save)
    draft.finish(0)
    card = ModelCard((exported(tmp_path / "model", tmp_path / "old") / "README.md").read_text("utf-8"))
    assert card.data.license == "unknown"
    assert card.text.strip().startswith("# old\n")


def test_the_generators_card_shows_its_prefix_and_lengths(tmp_path):
    from raydense.models.tiny import make_tiny_generator

    make_tiny_generator([" ".join(WORDS)] * 3, tmp_path / "plain", seed=3)
    rd.Generator.load(tmp_path / "plain", passage_prefix="ask: ", passage_length=40, query_length=12).save(tmp_path / "model")
    card = ModelCard((tmp_path / "model" / "README.md").read_text("utf-8"))
    assert "at most 40 tokens, after `'ask: '`" in card.text
    assert json.loads((tmp_path / "model" / "raydense.json").read_text())["query_length"] == 12
    (shown,) = card.text.split("```python\n")[1:]
    names: dict[str, Any] = {"folder": str(tmp_path / "model"), "passage": TEXTS[0]}
    exec(compile(shown.partition("```")[0], "README.md", "exec"), names)
    assert names["drawn"].shape[1] <= 12
    assert names["read"].input_ids.shape[1] > len(TEXTS[0].split())
