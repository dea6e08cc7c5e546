"""Encoders that are no transformer encoders learn by a retriever's method, go on after a stop, and load in sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer
from training_data import TrainingData, make_training_data
from transformers import AutoTokenizer, LongformerConfig, LongformerModel, Qwen3Config, Qwen3Model, T5Config, T5Model

from raydense.data.store import PassageStore
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_encoder
from raydense.refresh.train import train
from raydense.storage import Artifact
from raydense.training.history import read_history

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("training"))


def static(data: TrainingData, folder: Path) -> Path:
    store = PassageStore(data.root / "sample/corpus")
    make_tiny_encoder(store.passages(np.arange(len(store))), folder / "tiny", seed=1)
    torch.manual_seed(2)
    module = StaticEmbedding(Tokenizer.from_file(str(folder / "tiny/tokenizer.json")), embedding_dim=48)
    SentenceTransformer(modules=[module, Normalize()], device="cpu").save(str(folder / "static"), create_model_card=False)
    return folder / "static"


def assert_learned_and_loads(made: Artifact, data: TrainingData) -> None:
    losses = [line["loss"] for line in read_history(made.path / "history.jsonl")]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    texts = PassageStore(data.root / "sample/corpus").passages(np.arange(20))
    model = DualEncoder.load(made.path)
    with torch.no_grad():
        ours = model.encode_passages(model.tokenize_passages(texts).pad(model.tokenizer.pad_id)).numpy()
    theirs = SentenceTransformer(str(made.path), device="cpu", local_files_only=True).encode(texts)
    np.testing.assert_allclose(ours, theirs, atol=5e-6)


def test_a_static_embedding_learns(data: TrainingData, tmp_path: Path) -> None:
    model = static(data, tmp_path)
    made = train(data.settings(tmp_path / "made", model=str(model), dropout=None, lr=1e-2, max_steps=30, log_every=1, passage_length=64))
    assert_learned_and_loads(made, data)


def test_weights_that_the_forward_does_not_use_stay_what_they_are(data: TrainingData, tmp_path: Path) -> None:
    """Longformer's for global attention: DistributedDataParallel would wait for their gradients. Two workers learn what one does."""
    tokenizer = AutoTokenizer.from_pretrained(str(static(data, tmp_path).parent / "tiny"), local_files_only=True)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 130}
    config = LongformerConfig(vocab_size=len(tokenizer), attention_window=16, pad_token_id=tokenizer.pad_token_id, **size)
    torch.manual_seed(7)
    LongformerModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "longformer")
    tokenizer.save_pretrained(str(tmp_path / "longformer"))
    asked = {"model": str(tmp_path / "longformer"), "dropout": 0.0, "lr": 1e-3, "max_steps": 3, "log_every": 1, "passage_length": 32}
    made = [train(data.settings(tmp_path / f"by-{workers}", workers=workers, **asked)) for workers in (1, 2)]
    alone, two = ([line["loss"] for line in read_history(each.path / "history.jsonl")] for each in made)
    assert two == pytest.approx(alone, rel=1e-4)
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path / "longformer", made[1].path))
    unused = [name for name in before if "_global" in name]
    assert len(unused) == 6
    assert all(torch.equal(before[name], after[name]) for name in unused)


def test_a_decoder_learns_by_lora(data: TrainingData, tmp_path: Path) -> None:
    """By DeepSpeed, with ZeRO 1."""
    tokenizer = AutoTokenizer.from_pretrained(str(static(data, tmp_path).parent / "tiny"), local_files_only=True)
    torch.manual_seed(7)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    Qwen3Model(Qwen3Config(vocab_size=len(tokenizer), intermediate_size=64, initializer_range=0.3, **size)).save_pretrained(
        tmp_path / "qwen"
    )
    tokenizer.save_pretrained(str(tmp_path / "qwen"))
    asked = {"pooling": "lasttoken", "normalize": True, "adapter": "lora:rank=4", "engine": None, "dropout": None}
    lengths = {"passage_length": 64, "query_length": 64}
    made = train(data.settings(tmp_path / "made", model=str(tmp_path / "qwen"), lr=1e-2, max_steps=30, log_every=1, **asked, **lengths))
    assert_learned_and_loads(made, data)
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path / "qwen", made.path))
    assert torch.equal(before["embed_tokens.weight"], after["embed_tokens.weight"])
    assert not torch.equal(before["layers.0.mlp.up_proj.weight"], after["layers.0.mlp.up_proj.weight"])


@pytest.mark.parametrize("engine", ["ddp", "deepspeed"])
def test_the_encoder_of_a_t5_learns(data: TrainingData, tmp_path: Path, engine: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(static(data, tmp_path).parent / "tiny"), local_files_only=True)
    torch.manual_seed(7)
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    T5Model(T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **size)).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(str(tmp_path / "t5"))
    asked = {"normalize": True, "engine": {"name": engine}, "dropout": None, "lr": 1e-2, "max_steps": 30, "log_every": 1}
    made = train(data.settings(tmp_path / "made", model=str(tmp_path / "t5"), passage_length=64, query_length=64, **asked))
    assert_learned_and_loads(made, data)
    assert not any("decoder" in name for name in load_file(made.path / "model.safetensors"))
