"""The encoder of a model's first layers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from first_layers import cut

from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_encoder


def test_the_vectors_are_those_of_the_whole_model_without_its_last_layers(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    make_tiny_encoder(["a question about a notice", "the notice"], whole, 1)
    (whole / "README.md").write_text("a model of two layers")
    cut(whole, 1, out)
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    assert {file.name for file in out.iterdir()} == {file.name for file in whole.iterdir()} - {"README.md"}
    assert DualEncoder.load(out).config == DualEncoder.load(whole).config
    expected, made = AutoModel.from_pretrained(whole), AutoModel.from_pretrained(out)
    assert len(made.encoder.layer) == 1 < len(expected.encoder.layer)
    expected.encoder.layer = expected.encoder.layer[:1]
    tokens = torch.tensor([[2, 5, 6, 7, 3]])
    torch.testing.assert_close(made(tokens).last_hidden_state, expected(tokens).last_hidden_state, rtol=0, atol=0)


@pytest.mark.parametrize("layers", [0, 3])
def test_layers_that_are_not_there(layers: int, tmp_path: Path) -> None:
    make_tiny_encoder(["a question"], tmp_path / "whole", 1)
    with pytest.raises(SystemExit, match=f"has 2 layers, and {layers} were asked for"):
        cut(tmp_path / "whole", layers, tmp_path / "out")
    assert not (tmp_path / "out").exists()
