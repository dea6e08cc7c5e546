"""A stage begun in one precision does not continue in another; without Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

from raydense.errors import InputError
from raydense.inference.device import Device
from raydense.inference.encode import PartEncoder
from raydense.inference.generate import PartWriter
from raydense.inference.layout import Layout
from raydense.inference.precision import fix_precision, forget_precision, precision_of
from raydense.inference.rerank import BlockScorer
from raydense.inference.settings import EncodeSettings, GenerateSettings, RerankSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.storage import Draft

CPU = Layout(fewest=1, first=1, most=1, gpus=0, cpus=1, per_node=1)
INPUTS = {"model": "m", "corpus": "c", "run": "r", "queries": "q", "output": "o"}


def begun(folder: Path, *precisions: str) -> Draft:
    draft = Draft.open(folder, "run", {"stage": "test"})
    draft.commit("passage_ids.arrow", lambda path: path.write_text("ids"), rows=1)
    for number, precision in enumerate(precisions):
        draft.commit(f"{number}.txt", lambda path: path.write_text("done"), rows=1, precision=precision)
    return draft


def actor_of(verb: str, draft: Draft, precision: str | None) -> PartEncoder | PartWriter | BlockScorer:
    of_corpus = {k: INPUTS[k] for k in ("model", "corpus", "output")}
    if verb == "encode":
        return PartEncoder(EncodeSettings.read(of_corpus), draft, {"model": ""}, CPU, precision)
    if verb == "generate":
        return PartWriter(GenerateSettings.read(of_corpus), draft, {"model": ""}, CPU, precision, {})
    return BlockScorer(RerankSettings.read(INPUTS), draft, {"model": ""}, CPU, precision)


@pytest.mark.parametrize("verb", ["encode", "generate", "rerank"])
def test_an_actor_refuses_to_go_on_in_another_precision(tmp_path: Path, verb: str) -> None:
    draft = begun(tmp_path / "x", "fp16")
    actor = actor_of(verb, draft, precision_of(draft.committed().values(), draft))
    with pytest.raises(InputError, match=r"computed in fp16, and this device would continue in (fp32|bf16); continue on") as caught:
        actor(pa.table({}))
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: ")


@pytest.mark.parametrize("precision", ["fp32", None])
@pytest.mark.parametrize("verb", ["encode", "generate", "rerank"])
def test_it_continues_in_the_same_one_and_where_an_earlier_version_recorded_none(tmp_path: Path, verb: str, precision: str | None) -> None:
    with pytest.raises(InputError, match="no such model folder"):  # so it came as far as the model
        actor_of(verb, begun(tmp_path / "x"), precision)(pa.table({}))


def test_files_of_two_precisions_are_never_finished(tmp_path: Path) -> None:
    draft = begun(tmp_path / "x", "fp16", "bf16", "fp16")
    with pytest.raises(InputError, match=r"computed in bf16 and fp16: the devices of the cluster differ; .* --precision fp32"):
        precision_of(draft.committed().values(), draft)
    assert precision_of(begun(tmp_path / "y").committed().values(), draft) is None


def test_a_precision_shapes_the_output_where_it_was_given() -> None:
    for cls in (EncodeSettings, RerankSettings):
        given = {key: value for key, value in INPUTS.items() if key in cls.model_fields and (cls, key) != (EncodeSettings, "queries")}
        assert "precision" not in cls.read(given).shaping()  # as of the artifacts before there was one
        assert cls.read({**given, "precision": "fp32"}).shaping()["precision"] == "fp32"


@pytest.mark.parametrize("verb", ["encode", "rerank"])
@pytest.mark.parametrize("first", ["fp32", "bf16"])
def test_auto_follows_the_first_actor_where_the_cpus_of_a_cluster_differ(tmp_path: Path, first: str, verb: str) -> None:
    draft = begun(tmp_path / "x")
    assert draft.first("precision", first) == first
    actor = actor_of(verb, draft, None)
    with pytest.raises(InputError, match="no such model folder"):  # so it came as far as the model
        actor(pa.table({}))
    assert actor._device.precision == first


@pytest.mark.parametrize("first", ["fp32", "bf16"])
def test_the_precision_of_the_first_actor_holds_until_it_is_forgotten(tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, other = begun(tmp_path / "x"), {"fp32": AMX, "bf16": OLD}[first]
    monkeypatch.setattr("raydense.inference.device.cpuinfo", lambda: other)
    device = Device(CPU, 0, "auto", cpu_bf16=True)
    assert device.precision != first
    assert draft.first("precision", first) == first
    fix_precision(device, None, draft)
    assert device.precision == first
    forget_precision(draft)
    assert draft.first("precision", "fp16") == "fp16"


def test_a_device_that_lacks_the_first_one_s_precision_is_refused_before_anything_is_committed(tmp_path: Path) -> None:
    """As a V100 where an A100 began: the output can be continued on A100s."""
    draft = begun(tmp_path / "x")
    draft.first("precision", "bf16")
    with pytest.raises(
        InputError, match=r"the first device of this run computes in bf16, and another would in fp32; .* --accelerator.* --precision fp32"
    ):
        fix_precision(Device(CPU, 0, "auto"), None, draft)
    assert draft.first("precision", "fp32") == "bf16"


def test_what_is_asked_for_is_what_is_computed_in() -> None:
    assert [Device(CPU, 0, asked).precision for asked in ("auto", "fp32", "bf16")] == ["fp32", "fp32", "bf16"]


AMX = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\nbugs\t\t:\n"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16\nbugs\t\t:\n"
AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512_bf16\nbugs\t\t:\n"
OLD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2\nbugs\t\t: no_avx512_bf16\n"


@pytest.mark.parametrize(("cpuinfo", "chosen"), [(AMX, "bf16"), (INTEL, "fp32"), (AMD, "bf16"), (OLD, "fp32"), ("", "fp32")])
def test_auto_is_bf16_on_a_cpu_that_gains_by_it_where_the_model_multiplies(
    cpuinfo: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydense.inference.device.cpuinfo", lambda: cpuinfo)
    assert Device(CPU, 0, "auto", cpu_bf16=True).precision == chosen
    assert [Device(CPU, 0, "auto").precision, Device(CPU, 0, "fp32", cpu_bf16=True).precision] == ["fp32", "fp32"]


def test_auto_continues_in_what_was_begun_if_the_device_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.inference.device.cpuinfo", lambda: AMX)
    chosen = {begun: Device(CPU, 0, "auto", begun, cpu_bf16=True).precision for begun in ("fp32", "bf16", "fp16", None)}
    assert chosen == {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", None: "bf16"}  # fp16 is refused by the actor
    assert Device(CPU, 0, "auto", "bf16").precision == "fp32"


def test_auto_encodes_queries_in_fp32_as_a_search_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.inference.device.cpuinfo", lambda: AMX)
    draft, of_queries = begun(tmp_path / "x"), {key: INPUTS[key] for key in ("model", "queries", "output")}
    for given, found in (({}, "fp32"), ({"precision": "bf16"}, "bf16")):
        actor = PartEncoder(EncodeSettings.read(of_queries | given), draft, {"model": ""}, CPU, None)
        assert actor._device.precision == found


def test_a_static_encoder_stays_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.inference.device.cpuinfo", lambda: AMX)
    settings = EncodeSettings.read({key: INPUTS[key] for key in ("model", "corpus", "output")})
    for multiplies, precision in ((False, "fp32"), (True, "bf16")):
        actor = PartEncoder(settings, begun(tmp_path / precision), {"model": ""}, CPU, None, multiplies=multiplies)
        assert actor._device.precision == precision


def test_bf16_keeps_the_directions_of_a_transformers_vectors(tiny_folder: Path, texts: list[str]) -> None:
    vectors = {precision: encoded(tiny_folder, texts, Device(CPU, 0, precision)) for precision in ("fp32", "bf16")}
    found = {precision: of / np.linalg.norm(of, axis=1, keepdims=True) for precision, of in vectors.items()}
    assert (found["fp32"] * found["bf16"]).sum(axis=1).min() > 0.9999
    assert not np.array_equal(found["fp32"], found["bf16"])  # so it did compute in bf16


def encoded(folder: Path, texts: list[str], device: Device, weights_once: bool = True) -> np.ndarray:
    model = DualEncoder.load(folder)
    model = device.place(model) if weights_once else model
    vectors, _ = device.run(model.tokenizer.passages(texts), model.tokenizer.pad_id, model.encode_passages, lambda n: None)
    return vectors


@pytest.mark.parametrize("kind", ["encoder", "decoder with a dense layer"])
def test_weights_cast_once_give_the_bits_of_autocast(tiny_folder: Path, texts: list[str], tmp_path: Path, kind: str) -> None:
    folder = tiny_folder if kind == "encoder" else decoder(tiny_folder, tmp_path)
    np.testing.assert_array_equal(*(encoded(folder, texts, Device(CPU, 0, "bf16"), once) for once in (True, False)))


def decoder(tiny_folder: Path, folder: Path) -> Path:
    """A Qwen2 with random weights, last-token pooling and a dense layer after it."""
    config = Qwen2Config(
        vocab_size=AutoTokenizer.from_pretrained(tiny_folder).vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    Qwen2Model(config).save_pretrained(folder / "qwen")
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(folder / "qwen")
    layers = [Transformer(str(folder / "qwen"), max_seq_length=50), Pooling(64, pooling_mode="lasttoken"), Dense(64, 24)]
    SentenceTransformer(modules=layers, device="cpu").save(str(folder / "whole"), create_model_card=False)
    return folder / "whole"
