"""Attention for training on a CPU, in place of PyTorch's kernel: in bf16, whose backward pass there takes two to six times as long, and with dropout,
for which that kernel is not made, so that the weights of all pairs of tokens are kept in float32.

A few texts are computed at a time, and their weights again in the backward pass, so that no tensor of the size tokens x tokens is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from raydense.models.cpu_dropout import drawn_seed, drop_, kept_bits

CPU_ATTENTION = "raydense_cpu"
_AT_ONCE = 2**19  # pairs of tokens of all heads
_OF_A_TEXT = 2**23  # the same, of one text: of more the kernel keeps less memory, unless there is dropout


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [texts, heads, tokens, size] each, a mask that is True where a token is seen.

    Whatever this file does not make faster goes to PyTorch's kernel: no training, another device, float32 or long texts without dropout, causal or
    biased attention.
    """
    if not _is_ours(module, query, key, attention_mask, dropout, kwargs):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    unseen = None
    if attention_mask is not None:
        least = torch.finfo(query.dtype).min
        unseen = torch.zeros(attention_mask.shape, dtype=query.dtype).masked_fill_(~attention_mask, least).expand(len(query), -1, -1, -1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    found: Tensor = _Attention.apply(query, key, value, unseen, drawn_seed() if dropout else None, scale, dropout)
    return found.transpose(1, 2), None


AttentionInterface.register(CPU_ATTENTION, attention)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)


def _is_ours(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> bool:
    # also without a gradient: gradient caching computes a text twice, and draws the same
    if query.device.type != "cpu" or not module.training:
        return False
    half = query.dtype == torch.bfloat16 or (torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16)
    if not half and not (dropout and query.dtype == torch.float32):
        return False
    if not dropout and query.shape[1] * query.shape[2] * key.shape[2] > _OF_A_TEXT:
        return False
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    biased = any(kwargs.get(name) is not None for name in ("position_bias", "softcap", "cache"))
    plain = query.shape[1] == key.shape[1] and not biased
    return plain and (not causal if mask is None else mask.dtype == torch.bool)


class _Attention(torch.autograd.Function):
    """softmax(scale q k^T) v of a few texts at a time; with dropout, its weights are dropped and scaled."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, unseen: Tensor | None, seed: Tensor | None, scale: float, p: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, unseen, seed)
        ctx.scale, ctx.p = scale, p
        found = _by_token(query, value.shape[-1])
        with torch.autocast("cpu", enabled=False):
            for at in _texts(query, key):
                weights = _weights(query[at], key[at], None if unseen is None else unseen[at], scale)
                if seed is not None:
                    drop_(weights, kept_bits(seed + at.start, list(weights.shape), p))
                found[at] = weights @ value[at]
        return found if seed is None else found.mul_(1 / (1 - p))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, unseen, seed = ctx.saved_tensors
        grads = [_by_token(each, each.shape[-1]) for each in (query, key, value)]
        if seed is not None:
            grad = grad * (1 / (1 - ctx.p))
        for at in _texts(query, key):
            weights = _weights(query[at], key[at], None if unseen is None else unseen[at], ctx.scale)
            of_weights, applied = grad[at] @ value[at].transpose(-1, -2), weights
            if seed is not None:
                kept = kept_bits(seed + at.start, list(weights.shape), ctx.p)
                drop_(of_weights, kept)
                applied = drop_(weights.clone(), kept)
            grads[2][at] = applied.transpose(-1, -2) @ grad[at]
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            grads[0][at] = (of_scores @ key[at]).mul_(ctx.scale)
            grads[1][at] = (of_scores.transpose(-1, -2) @ query[at]).mul_(ctx.scale)
        return (*grads, None, None, None, None)


def _texts(query: Tensor, key: Tensor) -> list[slice]:
    """Slices of texts whose pairs of tokens are computed at once: one text at least."""
    texts, heads, tokens, _ = query.shape
    size = max(1, _AT_ONCE // (heads * tokens * key.shape[2]))
    return [slice(at, min(texts, at + size)) for at in range(0, texts, size)]


def _weights(query: Tensor, key: Tensor, unseen: Tensor | None, scale: float) -> Tensor:
    scores = (query * scale) @ key.transpose(-1, -2)
    return (scores if unseen is None else scores.add_(unseen)).softmax(-1)


def _by_token(like: Tensor, size: int) -> Tensor:
    """An empty tensor [texts, heads, tokens, size] whose heads of one token lie together, as linear layers give and take them."""
    texts, heads, tokens, _ = like.shape
    return like.new_empty(texts, tokens, heads, size).transpose(1, 2)
