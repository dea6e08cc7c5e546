"""What a GPU's actor gives for texts, against the CPU in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raydense.inference.device import Device
from raydense.inference.layout import Layout
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder

HALVES = [("bf16", torch.bfloat16, 0.999, 0.05), ("fp16", torch.float16, 0.99999, 0.005)]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def layout(gpus: float) -> Layout:
    return Layout(fewest=1, first=1, most=1, gpus=gpus, cpus=1, per_node=1)


def computed(model: Any, tokens: Any, forward: str, gpus: float, precision: str) -> tuple[torch.Tensor, set[torch.dtype]]:
    """What the device gives, and the dtypes of the weights."""
    on = Device(layout(gpus), 0, precision)
    placed = on.place(model)
    found = on.run(tokens, placed.tokenizer.pad_id, getattr(placed, forward), lambda _: None)[0]
    return torch.from_numpy(found), {weight.dtype for weight in placed.parameters()}


@needs_gpu
@pytest.mark.parametrize(("precision", "half", "near", "away"), HALVES)
def test_vectors_are_near_those_of_float32(
    tiny_folder: Path, texts: list[str], precision: str, half: torch.dtype, near: float, away: float
) -> None:
    tokens = DualEncoder.load(tiny_folder).tokenize_passages(texts)
    wanted, _ = computed(DualEncoder.load(tiny_folder), tokens, "encode_passages", 0, "fp32")
    found, dtypes = computed(DualEncoder.load(tiny_folder), tokens, "encode_passages", 1, precision)
    assert dtypes == {half}
    assert torch.cosine_similarity(found, wanted).min() > near


@needs_gpu
@pytest.mark.parametrize(("precision", "half", "near", "away"), HALVES)
def test_scores_are_near_those_of_float32(
    tiny_folder: Path, texts: list[str], precision: str, half: torch.dtype, near: float, away: float
) -> None:
    found = []
    for gpus, chosen in ((0, "fp32"), (1, precision)):
        torch.manual_seed(0)
        model = CrossEncoder.load(tiny_folder)
        with torch.no_grad():
            model.model.classifier.weight *= 200
        found.append(computed(model, model.tokenize_pairs(texts[:40], texts[40:80]), "forward", gpus, chosen))
    assert found[1][1] == {half, torch.float32}
    assert (found[1][0] - found[0][0]).abs().max() < away * found[0][0].std()
