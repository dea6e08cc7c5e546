"""What is computed in float32 under autocast: of a T5 in fp16 the output of its feed-forward layers, which leaves fp16's range; a re-ranker's score."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raydense.errors import InputError
from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.float32_linear import overflows_in_fp16
from raydense.models.generator import Generator
from raydense.models.sampling import sample_queries
from raydense.models.tiny import make_tiny_generator
from raydense.training.engine import TorchEngine
from raydense.training.precision import precision_for
from raydense.training.settings import TrainSettings

PASSAGES = ["a red fox in winter", "old bridges of stone carry no one home when rivers freeze", "fever"]
QUERIES = ["what causes the fever", "stone", "when rivers freeze and no one"]
CPU = torch.device("cpu")
CPU_LAYOUT = Layout(fewest=1, first=1, most=1, gpus=0, cpus=1, per_node=1)
LARGEST = torch.finfo(torch.float16).max


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """A tiny T5 whose feed-forward layers give values of millions, as those of trained T5s do; the norms after them bring these back."""
    made = tmp_path_factory.mktemp("generator")
    make_tiny_generator(texts, made / "small", seed=3)
    model = Generator.load(made / "small")
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if name.endswith("wo.weight"):
                weight *= 1e6
    model.save(made / "large")
    return made / "large"


def settings(**more: object) -> TrainSettings:
    given = {"queries": "q", "corpus": "c", "examples": "e", "model": "m", "output": "o", "engine": {"name": "ddp"}, **more}
    return TrainSettings.read({"objective": "generator", **given})  # type: ignore[return-value]


def batches(model: Generator) -> dict[str, dict[str, torch.Tensor]]:
    pad = model.tokenizer.pad_id
    return {"queries": model.tokenize_queries(QUERIES).pad(pad), "passages": model.tokenize_passages(PASSAGES).pad(pad)}


def test_its_values_are_beyond_fp16_and_its_loss_is_that_of_float32(folder: Path) -> None:
    model = Generator.load(folder)
    highest = []
    for name, layer in model.named_modules():
        if name.endswith("wo"):
            layer.register_forward_hook(lambda _, __, found: highest.append((found.dtype, found.abs().max().item())))
    with torch.inference_mode():
        wanted, _ = model(**batches(model))
        assert max(value for _, value in highest) > 10 * LARGEST
        highest.clear()
        with torch.autocast("cpu", torch.float16):
            found, _ = model(**batches(model))
    assert {dtype for dtype, _ in highest} == {torch.float32}
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)


def test_what_it_draws_in_fp16_is_sound(folder: Path) -> None:
    model = Generator.load(folder, query_length=8)
    with torch.inference_mode(), torch.autocast("cpu", torch.float16):
        drawn = sample_queries(model, batches(model)["passages"], torch.arange(3), 2)
    assert drawn.shape == (3, 2, 8)


def test_steps_in_fp16_are_those_of_float32(folder: Path) -> None:
    """A few steps with a scaled loss: every gradient is finite, and the loss falls as it does in float32."""
    losses = {}
    for precision in ("fp32", "fp16"):
        model = Generator.load(folder)
        engine = TorchEngine(model, settings(), CPU, precision)  # type: ignore[arg-type]
        losses[precision] = []
        for _ in range(4):
            surprise, tokens = engine.forward(**batches(model))
            loss = surprise.sum() / tokens.sum()
            engine.backward(loss)
            assert torch.isfinite(torch.tensor(engine.step(1e-3)))
            losses[precision].append(loss.item())
        assert all(weight.isfinite().all() for weight in engine.weights().values())
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["fp16"][-1] < losses["fp16"][0]


def test_float32_and_bf16_stay_as_they_were(folder: Path) -> None:
    """Only fp16's range is too small: in bf16 the layer is autocast's."""
    layer = next(module for name, module in Generator.load(folder).named_modules() if name.endswith("wo"))
    plain = nn.Linear(layer.in_features, layer.out_features, bias=False)  # type: ignore[arg-type]
    plain.weight = layer.weight  # type: ignore[assignment]
    inputs = torch.randn(3, layer.in_features)  # type: ignore[arg-type]
    assert torch.equal(layer(inputs), plain(inputs))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(inputs).dtype == torch.bfloat16
        assert torch.equal(layer(inputs), plain(inputs))


def test_deepspeed_would_cast_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU without bf16 (V100): DDP takes fp16, DeepSpeed does not, and auto is then float32."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70"])
    gpu, model = torch.device("cuda"), Generator.load(folder)
    assert precision_for(settings(), gpu, model) == precision_for(settings(precision="fp16"), gpu, model) == "fp16"
    assert precision_for(settings(engine={"name": "deepspeed"}), gpu, model) == "fp32"
    with pytest.raises(
        InputError, match=r"precision: DeepSpeed casts all weights to fp16, whose range .* give --engine\.name ddp, or --precision"
    ):
        precision_for(settings(engine={"name": "deepspeed"}, precision="fp16"), gpu, model)
    other = nn.Linear(2, 2)
    assert precision_for(settings(engine={"name": "deepspeed"}), gpu, other) == "fp16"


@pytest.fixture(scope="module")
def reranker(tiny_folder: Path) -> CrossEncoder:
    """A re-ranker whose scores are near 6, as a trained one's are for good passages: bf16 has steps of 1/32 there."""
    torch.manual_seed(0)
    model = CrossEncoder.load(tiny_folder)
    with torch.no_grad():
        model.model.classifier.weight *= 200
        model.model.classifier.bias += 6
    return model


def test_the_scores_of_a_reranker_are_not_rounded_to_bf16(reranker: CrossEncoder, texts: list[str]) -> None:
    """Rounded to 8 bits, nearly all passages of a query would tie."""
    ten = texts[:10]
    pairs = reranker.tokenize_pairs([text for text in ten for _ in ten], ten * 10).pad(reranker.tokenizer.pad_id)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        scores = reranker(pairs)
    assert scores.dtype == torch.float32
    assert len(scores.unique()) > 90
    assert len(scores.bfloat16().unique()) < 20
    with torch.inference_mode():
        assert (scores - reranker(pairs)).abs().max() < 0.1
    assert not overflows_in_fp16(reranker)  # its weights may all be cast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nor_where_all_weights_were_cast(reranker: CrossEncoder, texts: list[str], dtype: torch.dtype) -> None:
    """As DeepSpeed does on a GPU, without autocast."""
    ten = texts[:10]
    pairs = reranker.tokenize_pairs([text for text in ten for _ in ten], ten * 10).pad(reranker.tokenizer.pad_id)
    with torch.inference_mode():
        scores = deepcopy(reranker).to(dtype)(pairs)
    assert scores.dtype == torch.float32
    assert len(scores.unique()) > 90


def test_weights_cast_once_give_the_scores_of_autocast(reranker: CrossEncoder, texts: list[str]) -> None:
    pairs = reranker.tokenize_pairs([texts[0]] * 10, texts[:10])
    found = []
    for place in (lambda model: model, Device(CPU_LAYOUT, 0, "bf16").place):
        model = place(deepcopy(reranker))
        found.append(Device(CPU_LAYOUT, 0, "bf16").run(pairs, model.tokenizer.pad_id, model, lambda n: None)[0])
    np.testing.assert_array_equal(*found)
