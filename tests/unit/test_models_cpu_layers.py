"""Dropout and attention of a training on a CPU: PyTorch's values and gradients, the share that is dropped, and draws that repeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import BertConfig, BertModel, T5Config, T5EncoderModel

from raydense.models.cpu_attention import CPU_ATTENTION, attention
from raydense.models.cpu_dropout import CpuDropout
from raydense.models.cpu_layers import use_cpu_layers


class Layer(nn.Module):
    is_causal = False


def some(texts: int, heads: int, tokens: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(texts, tokens, heads, size).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]


def grads(run: Callable[..., Tensor], of: list[Tensor], grad: Tensor) -> list[Tensor]:
    found = run(*of)
    return [found.detach(), *torch.autograd.grad(found, of, grad)]


@settings(max_examples=25, deadline=None)
@given(texts=st.integers(1, 5), heads=st.integers(1, 3), tokens=st.integers(1, 40), masked=st.booleans(), seed=st.integers(0, 9))
def test_attention_has_the_values_and_gradients_of_a_double_precision_reading(
    texts: int, heads: int, tokens: int, masked: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    given = some(texts, heads, tokens, 8, torch.bfloat16)
    lengths = torch.randint(1, tokens + 1, (texts,))
    mask = (torch.arange(tokens) < lengths[:, None])[:, None, None].expand(texts, 1, tokens, tokens) if masked else None
    grad = torch.randn(texts, heads, tokens, 8).to(torch.bfloat16)
    own = grads(lambda q, k, v: attention(Layer(), q, k, v, mask)[0].transpose(1, 2), given, grad)
    exact = [each.detach().double().requires_grad_() for each in given]
    right = grads(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask), exact, grad.double())
    for ours, reading in zip(own, right, strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), reading, rtol=0.05, atol=0.05)


def test_a_few_texts_at_a_time_give_what_all_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    given, grad = some(6, 2, 10, 8, torch.float32), torch.randn(6, 2, 10, 8)
    mask = (torch.arange(10) < torch.tensor([10, 3, 7, 1, 9, 10])[:, None])[:, None, None].expand(6, 1, 10, 10)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(Layer(), q, k, v, mask, dropout=1e-9)[0].transpose(1, 2)

    whole = grads(run, given, grad)
    monkeypatch.setattr("raydense.models.cpu_attention._AT_ONCE", 2 * 10 * 10 * 4)
    for one, other in zip(grads(run, given, grad), whole, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("dropout", "dtype"), [(0.2, torch.float32), (0.0, torch.bfloat16)])
def test_in_training_a_way_through_without_gradients_has_the_values_of_one_with_them(dropout: float, dtype: torch.dtype) -> None:
    given = some(3, 2, 40, 8, dtype)

    def values() -> Tensor:
        torch.manual_seed(2)
        return attention(Layer(), *given, None, dropout=dropout)[0]

    with torch.no_grad():
        before = values()
    assert torch.equal(before, values())


def test_long_texts_without_dropout_take_the_kernel_which_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydense.models.cpu_attention._OF_A_TEXT", 2 * 40 * 40 - 1)
    for tokens, kernel in ((39, False), (40, True)):
        given = some(1, 2, tokens, 8, torch.bfloat16)
        found = attention(Layer(), *given, None)[0]
        assert ("ScaledDotProduct" in _names(found)) is kernel
        assert ("_Attention" in _names(found)) is not kernel


def _names(found: Tensor) -> str:
    """The names of the functions that a tensor's gradient goes through, down to the leaves."""
    names, left = [], [found.grad_fn]
    while left:
        one = left.pop()
        if one is not None:
            names.append(one.name())
            left += [each for each, _ in one.next_functions]
    return " ".join(names)


def test_one_mask_of_all_texts() -> None:
    given, grad = some(3, 2, 5, 8, torch.bfloat16), torch.randn(3, 2, 5, 8).to(torch.bfloat16)
    near = (torch.arange(5)[:, None] - torch.arange(5)).abs()[None, None] < 2  # as a sliding window

    def run(mask: Tensor) -> list[Tensor]:
        return grads(lambda q, k, v: attention(Layer(), q, k, v, mask)[0].transpose(1, 2), given, grad)

    assert all(torch.equal(one, other) for one, other in zip(run(near), run(near.expand(3, 1, 5, 5)), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_with_dropout_is_that_of_the_weights_that_were_kept(dtype: torch.dtype) -> None:
    texts, heads, tokens, p = 2, 3, 6, 0.4
    given = some(texts, heads, tokens, tokens, dtype)
    eye = torch.eye(tokens, dtype=dtype).expand(texts, heads, tokens, tokens).requires_grad_()
    torch.manual_seed(7)
    applied = attention(Layer(), given[0], given[1], eye, None, dropout=p)[0].transpose(1, 2)  # the weights themselves
    kept = applied != 0
    assert 0.2 < kept.float().mean() < 0.95
    grad = torch.randn(texts, heads, tokens, tokens).to(dtype)

    def drawn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attention(Layer(), q, k, v, None, dropout=p)[0].transpose(1, 2)

    def read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(2, 3) * tokens**-0.5).softmax(-1) * kept / (1 - p)) @ v

    exact = [each.detach().double().requires_grad_() for each in given]
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.08}
    for ours, right in zip(grads(drawn, given, grad), grads(read, exact, grad.double()), strict=True):
        torch.testing.assert_close(ours.double(), right, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_its_share_scales_the_rest_and_masks_the_gradient_alike(dtype: torch.dtype, p: float) -> None:
    values = torch.rand(200, 501, dtype=torch.float32).add(0.5).to(dtype).requires_grad_()
    torch.manual_seed(3)
    found = CpuDropout(p)(values)
    kept = found != 0
    count = values.numel()
    assert abs(int((~kept).sum()) - count * p) < 5 * (count * p * (1 - p)) ** 0.5
    assert torch.equal(found, torch.where(kept, values * (1 / (1 - p)), 0))
    (grad,) = torch.autograd.grad(found, values, torch.ones_like(found))
    assert torch.equal(grad != 0, kept)
    again = CpuDropout(p)(values) != 0
    assert not torch.equal(again, kept), "another call draws anew"
    by_chance = (again == kept).float().mean()
    assert abs(by_chance - (p * p + (1 - p) ** 2)) < 0.01
    torch.manual_seed(3)
    assert torch.equal(CpuDropout(p)(values), found), "torch's random state decides"
    assert CpuDropout(p).eval()(values) is values


def bert(**config: float) -> BertModel:
    shape = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertModel(BertConfig(**shape, **config), add_pooling_layer=False)


def test_a_model_has_the_gradients_it_had_and_saves_what_it_saved(tmp_path: object) -> None:
    torch.manual_seed(1)
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    batch = {
        "input_ids": torch.randint(0, 60, (4, 12)),
        "attention_mask": (torch.arange(12) < torch.tensor([12, 3, 8, 12])[:, None]).long(),
    }

    def gradients() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(**batch).last_hidden_state[batch["attention_mask"] == 1].float().pow(2).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    saved, before = model.config.to_dict(), gradients()
    use_cpu_layers(model)
    assert model.config._attn_implementation == CPU_ATTENTION
    assert model.config.to_dict() == saved
    for one, other in zip(gradients(), before, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm() + 1e-3


def test_dropout_of_a_whole_model_repeats_with_torchs_random_state() -> None:
    model = bert().train()
    use_cpu_layers(model)
    assert {type(m) for m in model.modules() if isinstance(m, nn.Dropout)} == {CpuDropout}
    ids = torch.randint(0, 60, (4, 12))

    def gradients(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        model.zero_grad()
        model(input_ids=ids).last_hidden_state.pow(2).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    one, same, other = gradients(1), gradients(1), gradients(2)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_attention_with_position_biases_is_left_to_pytorch() -> None:
    """T5's: in bf16, where attention without biases is ours."""
    bert = BertModel(BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64))
    t5 = T5EncoderModel(T5Config(vocab_size=60, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0))
    ids = torch.arange(3, 27).view(2, 12)

    def loss(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            value: Tensor = model(input_ids=ids).last_hidden_state.float().pow(2).sum()
        return value

    def gradients() -> list[Tensor]:
        found = loss(t5)
        return [found.detach(), *torch.autograd.grad(found, [*t5.parameters()])]

    before = gradients()
    for model in (bert.train(), t5.train()):
        use_cpu_layers(model)
    assert all(torch.equal(one, other) for one, other in zip(gradients(), before, strict=True))
    assert ["_Attention" in _names(loss(model)) for model in (bert, t5)] == [True, False]
