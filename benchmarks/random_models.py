"""Encoders with random weights, for benchmarks in which only speed counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from raydense.models.dual_encoder import DualEncoder
from raydense.models.tiny import make_tiny_encoder


def model_folder(name: str, root: Path, texts: list[str]) -> Path:
    """`tiny`, or `six`: six layers of width 384, random weights, the tokenizer of tiny."""
    folder = root / name
    make_tiny_encoder(texts, folder, 1)
    if name == "six":
        vocabulary = DualEncoder.load(folder).encoder.config.vocab_size
        shape: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        torch.manual_seed(1)
        BertModel(BertConfig(vocab_size=vocabulary, **shape), add_pooling_layer=False).save_pretrained(folder)
    return folder
