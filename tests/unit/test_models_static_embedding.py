"""Static embeddings against the real sentence-transformers, and how they are distilled."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from training_data import make_training_data

from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.models.encoder_config import write_own_config
from raydense.models.model_kind import multiplies
from raydense.models.modules.static_embedding import distilled
from raydense.training.activation_checkpointing import checkpoint_activations
from raydense.training.memory import MemoryEstimate
from raydense.training.method import method_of
from raydense.training.settings import PretrainSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def static(tiny_folder: Path, tmp_path: Path) -> Path:
    torch.manual_seed(2)
    module = StaticEmbedding(Tokenizer.from_file(str(tiny_folder / "tokenizer.json")), embedding_dim=24)
    SentenceTransformer(modules=[module, Normalize()], device="cpu").save(str(tmp_path / "static"), create_model_card=False)
    return tmp_path / "static"


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("static_encoder", ROOT / "jobs" / "static_encoder.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(model: DualEncoder, texts: list[str]) -> np.ndarray:
    with torch.no_grad():
        return model.encode_passages(model.tokenize_passages(texts).pad(model.tokenizer.pad_id)).numpy()


def theirs(folder: Path, texts: list[str]) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(texts)


def test_the_numbers_of_sentence_transformers_in_both_directions(static: Path, texts: list[str], tmp_path: Path) -> None:
    """Also of a text without tokens, of one with the padding token in it, and cut at the length that it was saved with."""
    texts = [*texts, "", "[PAD] fox"]
    model = DualEncoder.load(static)
    np.testing.assert_allclose(ours(model, texts), theirs(static, texts), atol=1e-6)
    np.testing.assert_array_equal(ours(model, [""]), np.zeros((1, 24)))
    assert model.dimension == 24
    assert model.config.normalize
    DualEncoder.load(static, passage_length=9).save(tmp_path / "saved")
    again = DualEncoder.load(tmp_path / "saved")
    assert again.config.passage_length == 9
    np.testing.assert_allclose(ours(again, texts), theirs(tmp_path / "saved", texts), atol=1e-6)
    assert np.abs(ours(again, texts) - ours(model, texts)).max() > 0.01


def byte_level() -> Tokenizer:
    """As that of GPT-2: no padding token, and "!" is token 0."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    core.train_from_iterator(["wow!! what a day!! there !! the end!!"] * 9, trainer)
    return core


def words(*vocabulary: str) -> Tokenizer:
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate([*vocabulary, "[UNK]"])}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return core


@pytest.mark.parametrize("core", [byte_level(), words("the", "re"), words("[PAD]", "x[PAD]"), words("the", "<pad>", "<pad>there")])
def test_tokens_are_those_of_the_folder_whether_or_not_it_can_pad(core: Tokenizer, tmp_path: Path) -> None:
    """A token that is named for padding would be split out of every word that has it inside."""
    texts = ["wow!! what a day !!", "there the cat", "x[PAD] <pad>there", ""]
    torch.manual_seed(2)
    module = StaticEmbedding(core, embedding_dim=8)
    SentenceTransformer(modules=[module], device="cpu").save(str(tmp_path / "theirs"), create_model_card=False)
    wanted = [found.ids for found in core.encode_batch(texts, add_special_tokens=False)]
    model = DualEncoder.load(tmp_path / "theirs")
    model.save(tmp_path / "saved")
    for folder in ("theirs", "saved"):
        read = DualEncoder.load(tmp_path / folder)
        tokens = read.tokenize_passages(texts)
        assert [found.tolist() for found in np.split(tokens.ids, tokens.offsets[1:-1])] == wanted
        np.testing.assert_allclose(ours(read, texts), theirs(tmp_path / folder, texts), atol=1e-6)
    kept = json.loads((tmp_path / "saved/tokenizer.json").read_text())["added_tokens"]
    assert kept == json.loads((tmp_path / "theirs/tokenizer.json").read_text())["added_tokens"]


def test_one_for_queries_beside_a_transformer_whose_padding_it_does_not_have(tiny_folder: Path, tmp_path: Path) -> None:
    module = StaticEmbedding(words("the", "cat"), embedding_dim=128)
    SentenceTransformer(modules=[module], device="cpu").save(str(tmp_path / "static"), create_model_card=False)
    static, tiny = DualEncoder.load(tmp_path / "static"), DualEncoder.load(tiny_folder)
    static.save(tmp_path / "both/query_encoder")
    tiny.save(tmp_path / "both/passage_encoder")
    write_own_config(tmp_path / "both", replace(tiny.config, shared=False))
    model = DualEncoder.load(tmp_path / "both")
    assert model.tokenizer.pad_id == tiny.tokenizer.pad_id
    with torch.no_grad():
        for pad in (model.tokenizer.pad_id, 1_000_000):
            found = model.encode_queries(model.tokenize_queries(["the", "cat the cat"]).pad(pad))
            np.testing.assert_allclose(found.numpy(), ours(static, ["the", "cat the cat"]), atol=1e-6)


def test_every_row_that_is_read_learns_as_a_mean_has_it(static: Path, texts: list[str]) -> None:
    model = DualEncoder.load(static, normalize=False).train()
    batch = model.tokenize_passages(["fox", "red fox fox"]).pad(0)
    model.encode_passages(batch).sum().backward()
    (table,) = model.parameters()
    assert table.grad is not None
    fox, red = int(batch["input_ids"][0, 0]), int(batch["input_ids"][1, 0])
    np.testing.assert_allclose(table.grad[fox], np.full(24, 1 + 2 / 3), rtol=1e-6)
    np.testing.assert_allclose(table.grad[red], np.full(24, 1 / 3), rtol=1e-6)
    assert (table.grad.abs().sum(dim=1) > 0).sum() == 2


def test_a_folder_of_model2vec_with_shared_and_weighted_rows(static: Path, texts: list[str]) -> None:
    size = Tokenizer.from_file(str(static / "tokenizer.json")).get_vocab_size()
    rng = np.random.default_rng(1)
    mapping = torch.from_numpy(rng.integers(0, 5, size))
    weights = {"embeddings": torch.randn(5, 24).half(), "mapping": mapping, "weights": torch.rand(size).double()}
    save_file(weights, static / "model.safetensors")
    np.testing.assert_allclose(ours(DualEncoder.load(static), texts), theirs(static, texts), atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), r"no weights \(model\.safetensors\)"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), "weights cannot be loaded"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(static: Path, damage: object, message: str) -> None:
    damage(static)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        DualEncoder.load(static)


def test_distilled_has_the_leading_components_weighted_by_rank() -> None:
    rng = np.random.default_rng(4)
    states = (rng.normal(size=(300, 6)) * [5, 3, 2, 1, 0.5, 0.1] + 1).astype(np.float32)
    table = distilled(states, 3)
    centred = states.astype(np.float64) - states.mean(axis=0)
    _, _, v = np.linalg.svd(centred, full_matrices=False)
    weight = 1e-4 / (1e-4 + 1 / (np.arange(1, 301) * np.log(300)))
    np.testing.assert_allclose(np.abs(table), np.abs(centred @ v[:3].T) * weight[:, None], rtol=1e-3, atol=1e-4)


def test_the_job_makes_a_retriever_that_sentence_transformers_loads(
    job: ModuleType, tiny_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    job.make(str(tiny_folder), str(tmp_path / "made"), 32, 64)
    model = DualEncoder.load(tmp_path / "made")
    np.testing.assert_allclose(ours(model, texts), theirs(tmp_path / "made", texts), atol=1e-6)
    teacher = DualEncoder.load(tiny_folder)
    fox = teacher.tokenizer.passage_source.convert_tokens_to_ids("fox")
    alone = ours(teacher, ["fox"])[0]
    np.testing.assert_allclose(job.token_vectors(teacher)[fox], alone, atol=1e-5)
    job.make(str(tiny_folder), str(tmp_path / "made"), 32, 64)  # is there
    with pytest.raises(InputError, match="129 is more than the 128 of the model"):
        job.make(str(tiny_folder), str(tmp_path / "wide"), 129, 64)


def test_memory_of_a_training_is_estimated_without_its_weights(static: Path, tmp_path: Path) -> None:
    data = make_training_data(tmp_path)
    asked = data.settings(tmp_path / "o", model=str(static), passage_length=64, query_length=64, batch_size=16)
    found = MemoryEstimate(asked, static, torch.device("cpu"))
    assert found.memory(0).gradients == 4 * 24 * Tokenizer.from_file(str(static / "tokenizer.json")).get_vocab_size()


def test_only_a_transformer_multiplies(static: Path, tiny_folder: Path) -> None:
    assert [multiplies(str(static)), multiplies(str(tiny_folder))] == [False, True]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dropout": 0.1}, "a static embedding has no dropout; leave dropout out"),
        ({"pooling": "cls"}, "its StaticEmbedding gives vectors, the mean of its tokens'; leave pooling out"),
        ({"adapter": "lora:rank=4"}, "a static embedding has no layer for an adapter"),
    ],
)
def test_what_has_no_effect_on_it_is_refused(given: dict[str, Any], message: str, static: Path) -> None:
    with pytest.raises(InputError, match=message):
        DualEncoder.load(static, **given)
    DualEncoder.load(static, dropout=0.0, pooling="mean")


def test_it_has_no_activations_to_compute_again(static: Path) -> None:
    with pytest.raises(InputError, match="activation_checkpointing: the model has none"):
        checkpoint_activations(DualEncoder.load(static))


@pytest.mark.parametrize("method", ["mlm", "cotmae"])
def test_it_is_refused_where_an_encoder_is_pre_trained(method: str, static: Path) -> None:
    given = {"output": "o", "corpus": "c", "model": str(static), "method": method} | ({"context": "passage"} if method == "cotmae" else {})
    settings = PretrainSettings.read(given)
    with pytest.raises(InputError, match="a StaticEmbedding has no layers to pre-train"):
        method_of(settings).check(settings, str(static))
