"""The stage `pretrain` on Ray Train: what it leaves is an encoder that Hugging Face and `train` start from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from training_data import TrainingData, make_training_data
from transformers import AutoModel

from raydense.data.generated import commit_queries
from raydense.data.oracle import oracle
from raydense.data.settings import OracleSettings
from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.mining.consistency import filter
from raydense.mining.settings import FilterSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.refresh.train import train
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Draft
from raydense.training.pretrain import pretrain
from raydense.training.settings import PretrainSettings

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    made = make_training_data(tmp_path_factory.mktemp("pretraining"))
    store = PassageStore(made.root / "sample/corpus")
    draft = Draft.open(made.root / "generated", "generated", {"stage": "test"})
    texts = store.passages(np.arange(len(store)))
    commit_queries(draft, "generated-00000.arrow", 0, [[" ".join(text.split()[:4])] * (i % 3) for i, text in enumerate(texts)])
    draft.finish(len(store), corpus=store.fingerprint)
    return made


def settings(data: TrainingData, output: Path, **more: object) -> PretrainSettings:
    given: dict[str, object] = {
        "method": "cotmae",
        "context": "query",
        "model": "tiny",
        "generated": str(data.root / "generated"),
        "engine": {"name": "ddp"},
    }
    short = {"max_steps": 6, "batch_size": 16, "lr": 1e-3, "passage_length": 48, "log_every": 2}
    every = {"output": str(output), "corpus": str(data.root / "sample/corpus"), **given, **short, **more}
    return PretrainSettings.read({name: value for name, value in every.items() if value is not None})


def test_an_encoder_is_left_that_others_load(data: TrainingData, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = pretrain(settings(data, tmp_path / "one"))
    assert "passages have no context, and are left out" in capfd.readouterr().err
    assert (made.kind, made.summary["objective"], made.summary["steps"]) == ("model", "cotmae", 6)
    lines = [json.loads(line) for line in (made.path / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert all(line["loss"] == pytest.approx(line["mlm"] + line["context"], rel=1e-5) for line in lines)
    ours, theirs = DualEncoder.load(made.path), AutoModel.from_pretrained(made.path, add_pooling_layer=False).eval()
    assert (ours.config.pooling, ours.config.passage_length) == ("cls", 48)
    batch = ours.tokenize_passages(["the founder of the town", "a ship"]).pad(ours.tokenizer.pad_id)
    with torch.inference_mode():
        torch.testing.assert_close(ours.encode_passages(batch), theirs(**batch).last_hidden_state[:, 0])
    assert pretrain(settings(data, tmp_path / "one")).fingerprint == made.fingerprint
    with pytest.raises(InputError, match=r"settings.context: query -> mixed"):
        pretrain(settings(data, tmp_path / "one", context="mixed"))
    fine = train(data.settings(tmp_path / "fine", model=str(made.path), max_steps=2))
    assert fine.summary["steps"] == 2


def test_the_judged_queries_are_contexts_as_generated_ones_are(
    data: TrainingData, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sample = data.root / "sample"
    given = {"corpus": str(sample / "corpus"), "queries": str(sample / "queries"), "qrels": str(sample / "qrels/train")}
    contexts = oracle(OracleSettings(**given, output=str(tmp_path / "contexts")))
    made = pretrain(settings(data, tmp_path / "encoder", generated=str(contexts.path)))
    assert f"{contexts.summary['without']:,} of {contexts.rows:,} passages have no context" in capfd.readouterr().err
    assert contexts.rows > contexts.summary["without"]
    assert made.manifest["made_from"]["inputs"]["generated"] == contexts.fingerprint
    filtered_by = index(IndexSettings(kind="bm25", corpus=given["corpus"], shards=1, output=str(tmp_path / "words")))
    kept = filter(
        FilterSettings(generated=str(contexts.path), corpus=given["corpus"], index=str(filtered_by.path), output=str(tmp_path / "kept"))
    )
    assert 0 < kept.summary["queries"] <= contexts.summary["queries"]


def test_a_layer_after_the_pooling_stays_what_it_is(data: TrainingData, tiny_folder: Path, tmp_path: Path) -> None:
    """It takes no part in the losses: two workers would wait for its gradients."""
    layers = [Transformer(str(tiny_folder), max_seq_length=48), Pooling(128, pooling_mode="cls"), Dense(128, 24)]
    SentenceTransformer(modules=layers, device="cpu").save(str(tmp_path / "start"), create_model_card=False)
    made = pretrain(settings(data, tmp_path / "made", model=str(tmp_path / "start"), method="mlm", context=None, generated=None, workers=2))
    before, after = (load_file(folder / "2_Dense/model.safetensors") for folder in (tmp_path / "start", made.path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.long
def test_two_workers_learn_what_one_does(data: TrainingData, tmp_path: Path) -> None:
    """coCondenser, whose contrast is over the texts of all workers: the same losses."""
    losses = []
    for workers in (1, 2):
        made = pretrain(settings(data, tmp_path / str(workers), method="cocondenser", context="mixed", workers=workers))
        lines = (made.path / "history.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
