"""What an actor's device does to a model: on a GPU all weights of a transformer are in half precision, apart from those that must not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raydense.errors import InputError
from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.float32_linear import ScoreLinear
from raydense.models.generator import Generator
from raydense.models.modules.dense import Dense
from raydense.models.tiny import make_tiny_generator

HALVES = [("bf16", torch.bfloat16, 0.999), ("fp16", torch.float16, 0.99999)]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def device(gpus: float, precision: str) -> Device:
    return Device(Layout(fewest=1, first=1, most=1, gpus=gpus, cpus=1, per_node=1), 0, precision)


def kinds(model: nn.Module) -> set[torch.dtype]:
    return {weight.dtype for weight in model.parameters()}


@needs_gpu
@pytest.mark.parametrize(("precision", "half", "near"), HALVES)
def test_the_vectors_of_a_cast_encoder_are_near_those_of_float32(
    tiny_folder: Path, texts: list[str], precision: str, half: torch.dtype, near: float
) -> None:
    wanted = vectors(DualEncoder.load(tiny_folder), texts, device(0, "fp32"))
    model = device(1, precision).place(DualEncoder.load(tiny_folder))
    assert kinds(model) == {half}
    found = vectors(DualEncoder.load(tiny_folder), texts, device(1, precision))
    assert torch.cosine_similarity(found, wanted).min() > near


def vectors(model: DualEncoder, texts: list[str], on: Device) -> torch.Tensor:
    placed = on.place(model)
    return torch.from_numpy(on.run(placed.tokenize_passages(texts), placed.tokenizer.pad_id, placed.encode_passages, lambda _: None)[0])


@needs_gpu
@pytest.mark.parametrize(("precision", "half", "near"), HALVES)
def test_the_head_of_a_cast_reranker_stays_in_float32(
    tiny_folder: Path, texts: list[str], precision: str, half: torch.dtype, near: float
) -> None:
    model, on = CrossEncoder.load(tiny_folder), device(1, precision)
    pairs = model.tokenize_pairs(texts[:8], texts[8:16])
    wanted = device(0, "fp32").run(pairs, 0, model, lambda _: None)[0]
    placed = on.place(model)
    assert {kind for layer in placed.modules() if isinstance(layer, ScoreLinear) for kind in kinds(layer)} == {torch.float32}
    assert kinds(placed) == {half, torch.float32}
    assert abs(on.run(pairs, 0, placed, lambda _: None)[0] - wanted).max() < 100 * (1 - near)


@needs_gpu
@pytest.mark.parametrize(("precision", "half", "near"), HALVES)
def test_of_a_t5_the_linear_layers_alone_are_cast(tmp_path: Path, texts: list[str], precision: str, half: torch.dtype, near: float) -> None:
    """Its states leave fp16's range, and lose digits in bf16."""
    make_tiny_generator(texts, tmp_path / "t5", seed=1)
    placed = device(1, precision).place(Generator.load(tmp_path / "t5"))
    assert {kind for layer in placed.modules() if "Norm" in type(layer).__name__ for kind in kinds(layer)} == {torch.float32}
    assert half in kinds(placed)


@pytest.mark.parametrize("gpus", [0, pytest.param(1, marks=needs_gpu)])
def test_what_follows_a_transformer_stays_in_float32_if_all_of_it_is_cast(tiny_folder: Path, gpus: float) -> None:
    model: Any = DualEncoder.load(tiny_folder)
    layer = nn.Linear(model.dimension, 8)
    model.passage_encoder.parts.append(Dense(layer, nn.Identity()))
    device(gpus, "bf16").place(model)
    assert layer.weight.dtype == (torch.float32 if gpus else torch.bfloat16)


def test_a_cpu_computes_no_fp16() -> None:
    with pytest.raises(InputError, match=r"precision: fp16 is for GPUs; give auto, fp32 or bf16"):
        _ = device(0, "fp16").precision
