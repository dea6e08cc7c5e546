"""Weights in half precision: all of a transformer's where they may be, for several families, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    PreTrainedModel,
    T5Config,
    T5ForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from raydense.models.dual_encoder import DualEncoder
from raydense.models.float32_linear import ScoreLinear, keep_in_float32, keep_score_in_float32
from raydense.models.half import cast_linear, cast_whole
from raydense.models.modules.dense import Dense

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
SMALL |= {"num_labels": 1, "pad_token_id": 1, "max_position_embeddings": 40}
SMALL_T5: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 50, "num_labels": 1}
FAMILIES: list[tuple[type[PreTrainedModel], Any, str]] = [
    (BertForSequenceClassification, BertConfig(**SMALL), "classifier"),
    (XLMRobertaForSequenceClassification, XLMRobertaConfig(**SMALL), "classifier.out_proj"),  # it registers its head first
    (CamembertForSequenceClassification, CamembertConfig(**SMALL), "classifier.out_proj"),
    (MPNetForSequenceClassification, MPNetConfig(**SMALL), "classifier.out_proj"),
    (DebertaV2ForSequenceClassification, DebertaV2Config(**SMALL), "classifier"),
]
HALVES = [(torch.bfloat16, 0.05), (torch.float16, 0.005)]


def scorer(cls: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """As `load_scorer` makes it; its scores differ by about 1."""
    torch.manual_seed(1)
    model = cls(config).eval()
    keep_in_float32(model)
    keep_score_in_float32(model)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, ScoreLinear):
                layer.weight *= 20
    return model


def scores(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.randint(3, 50, (16, 12), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0]
    return found


@pytest.mark.parametrize(("half", "away"), HALVES)
@pytest.mark.parametrize(("cls", "config", "head"), FAMILIES, ids=[cls.__name__ for cls, _, _ in FAMILIES])
def test_a_reranker_is_cast_but_for_the_layer_that_gives_its_score(
    cls: type[PreTrainedModel], config: Any, head: str, half: torch.dtype, away: float
) -> None:
    model = scorer(cls, config)
    assert [name for name, layer in model.named_modules() if isinstance(layer, ScoreLinear)] == [head]
    wanted = scores(model)
    assert wanted.std() > 0.1
    assert cast_whole(model, half)
    for name, weight in model.named_parameters():
        assert weight.dtype == (torch.float32 if name.startswith(f"{head}.") else half)
    found = scores(model)
    assert found.dtype == torch.float32
    assert (found - wanted).abs().max() < away * wanted.std()
    assert not torch.equal(found, wanted)


@pytest.mark.parametrize(("half", "away"), HALVES)
def test_a_t5_is_not_cast(half: torch.dtype, away: float) -> None:
    """Its states leave fp16's range, and are too large for bf16's digits."""
    model = scorer(T5ForSequenceClassification, T5Config(**SMALL_T5, decoder_start_token_id=0, eos_token_id=2))
    assert not cast_whole(model, half)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("half", "near"), [(torch.bfloat16, 0.999), (torch.float16, 0.99999)])
def test_vectors_are_near_those_of_float32_and_what_follows_a_transformer_computes_in_it(
    tiny_folder: Path, texts: list[str], half: torch.dtype, near: float
) -> None:
    found = []
    for cast in (False, True):
        model: Any = DualEncoder.load(tiny_folder)
        torch.manual_seed(1)
        layer = nn.Linear(model.dimension, 8)
        model.passage_encoder.parts.append(Dense(layer, nn.Identity()))
        model.passage_encoder.dimension = 8
        assert not cast or cast_whole(model, half)
        assert layer.weight.dtype == torch.float32
        with torch.inference_mode():
            found.append(model.encode_passages(model.tokenize_passages(texts[:50]).pad(model.tokenizer.pad_id)))
    assert torch.cosine_similarity(*found).min() > near
    assert not torch.equal(*found)


def test_linear_layers_alone_give_the_bits_of_autocast(tiny_folder: Path, texts: list[str]) -> None:
    found = []
    for cast in (False, True):
        model = DualEncoder.load(tiny_folder)
        if cast:
            cast_linear(model, torch.bfloat16)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found.append(model.encode_passages(model.tokenize_passages(texts[:50]).pad(model.tokenizer.pad_id)))
    assert torch.equal(*found)
