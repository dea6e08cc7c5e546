"""Each kind of module against the real sentence-transformers, in both directions, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import LSTM, Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.models.modules import kinds

POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean"), ("lasttoken", "max")]


def ours(folder: Path, texts: list[str], **overrides: object) -> np.ndarray:
    model = DualEncoder.load(folder, **overrides)
    with torch.no_grad():
        return model.encode_passages(model.tokenize_passages(texts).pad(model.tokenizer.pad_id)).numpy()


def theirs(folder: Path, texts: list[str], **how: object) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(texts, **how)


def save(folder: Path, *modules: torch.nn.Module) -> Path:
    SentenceTransformer(modules=list(modules), device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def transformer(tiny_folder: Path) -> Transformer:
    return Transformer(str(tiny_folder), max_seq_length=50)


@pytest.mark.parametrize("mode", POOLINGS)
def test_every_way_to_pool_gives_their_numbers_in_both_directions(
    tiny_folder: Path, transformer: Transformer, texts: list[str], tmp_path: Path, mode: str | tuple[str, ...]
) -> None:
    save(tmp_path / "theirs", transformer, Pooling(128, pooling_mode=mode))
    wanted = theirs(tmp_path / "theirs", texts)
    np.testing.assert_allclose(ours(tmp_path / "theirs", texts), wanted, atol=5e-6)
    name = mode if isinstance(mode, str) else "+".join(mode)
    DualEncoder.load(tiny_folder, pooling=name, passage_length=50).save(tmp_path / "ours")
    np.testing.assert_allclose(theirs(tmp_path / "ours", texts), wanted, atol=5e-6)
    assert DualEncoder.load(tmp_path / "ours").config.pooling == name


@pytest.mark.parametrize("mode", [mode for mode in POOLINGS if "max" not in mode])
def test_a_text_without_tokens_is_as_in_theirs(tiny_folder: Path, texts: list[str], tmp_path: Path, mode: str | tuple[str, ...]) -> None:
    """As an empty one is where the tokenizer adds no special tokens; alone, which theirs does not read, it is as beside others."""
    bare = shutil.copytree(tiny_folder, tmp_path / "bare")
    core = Tokenizer.from_str(json.dumps(json.loads((bare / "tokenizer.json").read_text()) | {"post_processor": None}))
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(str(bare))
    save(tmp_path / "theirs", Transformer(str(bare), max_seq_length=50), Pooling(128, pooling_mode=mode))
    wanted = theirs(tmp_path / "theirs", [*texts[:3], ""])
    np.testing.assert_allclose(ours(tmp_path / "theirs", [*texts[:3], ""]), wanted, atol=5e-6)
    if "cls" not in mode:  # of which there is none: theirs takes the state of padding
        np.testing.assert_array_equal(ours(tmp_path / "theirs", [""]), wanted[-1:])


@pytest.mark.parametrize("activation", [torch.nn.Tanh(), torch.nn.Identity(), torch.nn.GELU()])
def test_a_dense_layer_before_and_after_normalize(
    transformer: Transformer, texts: list[str], tmp_path: Path, activation: torch.nn.Module
) -> None:
    torch.manual_seed(1)
    dense = Dense(128, 24, activation_function=activation, bias=not isinstance(activation, torch.nn.Identity))
    for name, last in (("dense last", [Normalize(), dense]), ("normalize last", [dense, Normalize()])):
        folder = save(tmp_path / name, transformer, Pooling(128), *last)
        wanted = theirs(folder, texts)
        assert wanted.shape == (50, 24)
        np.testing.assert_allclose(ours(folder, texts), wanted, atol=2e-6)
        DualEncoder.load(folder).save(tmp_path / f"{name} again")
        np.testing.assert_allclose(theirs(tmp_path / f"{name} again", texts), wanted, atol=2e-6)
        assert load_file(tmp_path / f"{name} again" / ("3_Dense" if last[1] is dense else "2_Dense") / "model.safetensors")


def test_every_weight_of_a_dense_layer_learns(transformer: Transformer, texts: list[str], tmp_path: Path) -> None:
    model = DualEncoder.load(save(tmp_path, transformer, Pooling(128), Dense(128, 24))).train()
    model.encode_passages(model.tokenize_passages(texts).pad(0)).square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert model.dimension == 24
    wanted = model.eval().encode_passages(model.tokenize_passages(texts).pad(0))
    cast = model.to(torch.bfloat16).encode_passages(model.tokenize_passages(texts).pad(0))  # as DeepSpeed does on a GPU
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, wanted, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("normalized", [True, False])
def test_fewer_dimensions_are_those_of_sentence_transformers(
    transformer: Transformer, texts: list[str], tmp_path: Path, normalized: bool
) -> None:
    folder = save(tmp_path, transformer, Pooling(128), *([Normalize()] if normalized else []))
    found = ours(folder, texts, dimension=17)
    np.testing.assert_allclose(found, theirs(folder, texts, truncate_dim=17, normalize_embeddings=normalized), atol=2e-6)
    with pytest.raises(InputError, match="dimension 129 is more than the 128 of the model"):
        DualEncoder.load(folder, dimension=129)
    DualEncoder.load(folder, dimension=17).save(tmp_path / "cut")
    np.testing.assert_allclose(theirs(tmp_path / "cut", texts), found, atol=2e-6)
    again = DualEncoder.load(tmp_path / "cut")
    assert not [name for name, _ in again.named_parameters() if "linear" in name], "no layer that a training would change"
    again.save(tmp_path / "again")
    np.testing.assert_allclose(theirs(tmp_path / "again", texts), found, atol=2e-6)
    narrower = ours(folder, texts, dimension=9)
    np.testing.assert_allclose(ours(tmp_path / "cut", texts, dimension=9), narrower, atol=2e-6)
    (tmp_path / "cut/raydense.json").unlink()
    np.testing.assert_allclose(ours(tmp_path / "cut", texts), found, atol=2e-6)
    np.testing.assert_allclose(ours(tmp_path / "cut", texts, dimension=9), narrower, atol=2e-6)


def test_fewer_dimensions_of_two_encoders_are_those_of_sentence_transformers(tiny_folder: Path, texts: list[str], tmp_path: Path) -> None:
    DualEncoder.load(tiny_folder, shared=False, normalize=True, dimension=17, passage_length=50).save(tmp_path)
    model = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    np.testing.assert_allclose(model.encode_document(texts), ours(tmp_path, texts), atol=2e-6)


def test_what_is_unknown_is_refused_in_one_line(transformer: Transformer, tmp_path: Path) -> None:
    save(tmp_path / "lstm", transformer, LSTM(128, 8), Pooling(16))
    with pytest.raises(
        InputError, match="is made of Transformer, LSTM, Pooling; what can be read makes vectors of tokens: Dense takes vectors"
    ):
        DualEncoder.load(tmp_path / "lstm")
    save(tmp_path / "bare", transformer)
    with pytest.raises(InputError, match="is made of Transformer; what can be read makes vectors of tokens"):
        DualEncoder.load(tmp_path / "bare")
    modules = tmp_path / "code" / "modules.json"
    save(tmp_path / "code", transformer, Pooling(128))
    modules.write_text(modules.read_text().replace("sentence_transformers.base.modules.transformer", "custom_code"))
    with pytest.raises(InputError, match=r"is made of custom_code\.Transformer, Pooling") as refused:
        DualEncoder.load(tmp_path / "code")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"activation_function": "os.system"}, "activation os.system"),
        ({"activation_function": "torch.nn.modules.container.Sequential"}, "Sequential; there are Identity, Tanh"),
        ({"module_input_name": "token_embeddings"}, "has a residual, or reads states"),
        ({"in_features": None}, "in_features is None, and no int"),
        ({"in_features": 64}, "takes 64 numbers, and gets 128"),
        ({"out_features": 7}, "weights cannot be loaded"),
    ],
)
def test_a_dense_layer_that_cannot_be_read(transformer: Transformer, tmp_path: Path, values: dict[str, object], message: str) -> None:
    save(tmp_path, transformer, Pooling(128), Dense(128, 24))
    config = tmp_path / "2_Dense" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
    with pytest.raises(InputError, match=message):
        DualEncoder.load(tmp_path)


def test_a_layer_behind_a_model_as_the_guide_has_it(
    tiny_folder: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/models.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "from raydense.models.modules.dense" in block)
    (tmp_path / "model").symlink_to(tiny_folder)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert np.allclose(ours(tmp_path / "model-256", texts), theirs(tmp_path / "model-256", texts), atol=1e-5)
    assert ours(tmp_path / "model-256", texts).shape == (len(texts), 256)


def test_an_adapter_without_its_base_model_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="holds an adapter without its base model; merge it"):
        DualEncoder.load(tmp_path)


def test_each_file_is_a_kind_with_a_name_of_sentence_transformers() -> None:
    assert {"Transformer", "Pooling", "Dense", "Normalize"} <= kinds().keys()


def test_a_pooling_that_leaves_the_prompt_out_is_refused_where_there_is_a_prompt(transformer: Transformer, tmp_path: Path) -> None:
    for name, prompts in (("without", None), ("with", {"query": "query: "})):
        pooling = Pooling(128, include_prompt=False)
        SentenceTransformer(modules=[transformer, pooling], prompts=prompts, device="cpu").save(
            str(tmp_path / name), create_model_card=False
        )
    DualEncoder.load(tmp_path / "without")
    with pytest.raises(InputError, match=r"1_Pooling/config\.json: leaves the prompt out of the pooling"):
        DualEncoder.load(tmp_path / "with")


@pytest.mark.parametrize("last", [True, False])
def test_a_normalize_of_states_is_refused(transformer: Transformer, tmp_path: Path, last: bool) -> None:
    after = [] if last else [Dense(128, 24)]
    for given in ("sentence_embedding", "token_embeddings"):
        save(tmp_path / given, transformer, Pooling(128), Normalize(module_input_name=given), *after)
    DualEncoder.load(tmp_path / "sentence_embedding")
    with pytest.raises(InputError, match=r"2_Normalize/config\.json: normalizes states, not vectors"):
        DualEncoder.load(tmp_path / "token_embeddings")
