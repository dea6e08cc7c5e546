"""A decoder encoder with last-token pooling and LoRA, from a tiny Qwen of random weights, against sentence-transformers and eq. 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from training_data import make_training_data
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.models.weights import without_reading
from raydense.storage import Place
from raydense.training.engine import TorchEngine
from raydense.training.memory import MemoryEstimate

LORA = "lora:rank=4,alpha=8"
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.fixture(scope="module")
def qwen(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder), local_files_only=True)
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        intermediate_size=64,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.3,
        **SIZE,
    )
    Qwen3Model(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def load(folder: Path, **more: object) -> DualEncoder:
    return DualEncoder.load(folder, pooling="lasttoken", normalize=True, passage_length=40, query_length=40, **more)


def ours(model: DualEncoder, texts: list[str]) -> np.ndarray:
    with torch.no_grad():
        return model.encode_passages(model.tokenize_passages(texts).pad(model.tokenizer.pad_id)).numpy()


def theirs(folder: Path, texts: list[str]) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(texts)


def trained(model: DualEncoder, texts: list[str], steps: int = 3) -> DualEncoder:
    learning = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model.train()
    for _ in range(steps):
        vectors = model.encode_passages(model.tokenize_passages(texts[:8]).pad(0))
        loss = torch.nn.functional.cross_entropy(vectors @ vectors.T / 0.05, torch.arange(8).flip(0))
        learning.zero_grad()
        loss.backward()
        learning.step()
    return model.eval()


def test_a_decoder_of_theirs_gives_their_numbers_whichever_side_is_padded(qwen: Path, texts: list[str], tmp_path: Path) -> None:
    transformer = Transformer(str(qwen), max_seq_length=40)
    whole = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="lasttoken"), Normalize()], device="cpu")
    whole.save(str(tmp_path), create_model_card=False)
    model = DualEncoder.load(tmp_path)
    assert model.config.pooling == "lasttoken"
    for side in ("left", "right"):
        transformer.tokenizer.padding_side = side
        np.testing.assert_allclose(ours(model, texts), whole.encode(texts), atol=5e-6)
    alone = np.concatenate([ours(model, [text]) for text in texts])
    np.testing.assert_allclose(ours(model, texts), alone, atol=5e-6)


def test_only_the_adapter_learns_and_the_start_is_the_base_model(qwen: Path, texts: list[str]) -> None:
    torch.manual_seed(1)
    model, base = load(qwen, adapter=LORA), load(qwen)
    np.testing.assert_allclose(ours(model, texts), ours(base, texts), atol=1e-6)
    learns = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(learns) == 2 * 2 * 7
    assert all("lora_" in name for name in learns)
    trained(model, texts, steps=1)
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(learns)
    assert np.abs(ours(model, texts) - ours(base, texts)).max() > 1e-3


def test_the_saved_folder_is_whole_and_gives_the_numbers_of_the_model_with_its_adapter(
    qwen: Path, texts: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(1)
    model = trained(load(qwen, adapter=LORA), texts)
    model.save(tmp_path)
    wanted = ours(model, texts)
    np.testing.assert_allclose(ours(DualEncoder.load(tmp_path), texts), wanted, atol=5e-6)
    np.testing.assert_allclose(theirs(tmp_path, texts), wanted, atol=5e-6)
    np.testing.assert_allclose(ours(model, texts), wanted, atol=0)  # saving leaves the model as it is
    merged = DualEncoder.load(tmp_path).encoder.layers[1].mlp.down_proj.weight
    adapted = model.encoder.base_model.model.layers[1].mlp.down_proj
    low_rank = adapted.lora_B["default"].weight @ adapted.lora_A["default"].weight
    torch.testing.assert_close(merged, adapted.base_layer.weight + 8 / 4 * low_rank)


def test_weights_of_the_adapter_alone_bring_the_model_back(qwen: Path, texts: list[str]) -> None:
    """As a checkpoint does: what is frozen is that of the start."""
    torch.manual_seed(1)
    model = trained(load(qwen, adapter=LORA), texts)
    kept = {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}
    torch.manual_seed(99)
    again = load(qwen, adapter=LORA)
    again.load_state_dict({**again.state_dict(), **kept})
    np.testing.assert_array_equal(ours(again, texts), ours(model, texts))


def test_a_checkpoint_holds_the_adapter_alone_and_training_goes_on_exactly(qwen: Path, texts: list[str], tmp_path: Path) -> None:
    def engine() -> TorchEngine:
        torch.manual_seed(1)
        return TorchEngine(load(qwen, adapter=LORA).train(), asked, torch.device("cpu"), "fp32")

    def learn(on: TorchEngine, steps: int) -> TorchEngine:
        model = on.module
        for _ in range(steps):
            batch = model.tokenize_passages(texts[:8]).pad(0)
            on.backward(on.forward(passages=batch)[1].square().mul(torch.arange(32)).sum())
            on.step(0.01)
        return on

    data = make_training_data(tmp_path)
    asked = data.settings(tmp_path / "o", model=str(qwen), adapter=LORA, pooling="lasttoken")
    stopped = learn(engine(), 2)
    (tmp_path / "checkpoint").mkdir()
    stopped.save(tmp_path / "checkpoint")
    assert torch.load(tmp_path / "checkpoint/engine.pt", weights_only=True)["model"].keys() == stopped.weights().keys()
    again = engine()
    again.load(Place.of(tmp_path / "checkpoint"), 1)
    whole, resumed = learn(engine(), 5).weights(), learn(again, 3).weights()
    assert len(whole) == 2 * 2 * 7
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_memory_of_a_training_counts_gradients_of_the_adapter_alone(qwen: Path, tmp_path: Path) -> None:
    data = make_training_data(tmp_path)
    asked = data.settings(tmp_path / "o", model=str(qwen), adapter=LORA, pooling="lasttoken", passage_length=40)
    trained = sum(p.numel() for p in load(qwen, adapter=LORA).parameters() if p.requires_grad)
    assert MemoryEstimate(asked, qwen, torch.device("cpu")).memory(0).gradients == 4 * trained


def test_a_model_with_an_adapter_can_be_measured_without_its_weights(qwen: Path) -> None:
    with without_reading():
        assert load(qwen, adapter=LORA).dimension == 32


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("lore", "adapter: no adapter 'lore'; did you mean 'lora'"),
        ("lora:rang=3", "lora has no 'rang'; did you mean 'rank'"),
        ("lora:rank=0", "lora cannot be made"),
        ("lora:layers=nowhere", "lora cannot be made"),
    ],
)
def test_what_cannot_be_asked_for(qwen: Path, asked: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(qwen, adapter=asked)
