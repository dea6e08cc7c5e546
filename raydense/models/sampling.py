"""Draws queries from a generator by nucleus sampling; each passage has its own random numbers.

A token is drawn as the highest of log p + Gumbel noise (Gumbel 1954), which is a draw from p. The noise is a hash of the
passage's key, the number of the query, the place in it and the token: it does not depend on what else is in the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from raydense.errors import InputError
from raydense.models.generator import Generator
from raydense.models.tokens import Batch

_GOLDEN, _MIX_1, _MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # SplitMix64's, as signed numbers


def sample_queries(
    model: Generator, passages: Batch, keys: Tensor, each: int, top_p: float = 0.95, top_k: int = 25, temperature: float = 1.0
) -> Tensor:
    """`each` queries for each of n passages: int64 [n, each, length], padded after the end token.

    `passages` is a padded batch; `keys` int64 [n] seed each passage's draws. A token is drawn from the `top_k` likeliest (0: all), and
    among these from the fewest that hold `top_p` of their probability (Holtzman et al. 2020). Run it in inference mode. InputError if
    a probability is not a number.
    """
    hf: Any = model.model
    states = hf.get_encoder()(**passages).last_hidden_state.repeat_interleave(each, dim=0)
    mask = passages["attention_mask"].repeat_interleave(each, dim=0)
    streams = mixed(mixed(keys)[:, None] + torch.arange(each, device=keys.device)).flatten()
    ends = torch.tensor(model.end_ids, device=keys.device)
    written = torch.full((len(streams), model.config.query_length), model.tokenizer.pad_id, device=keys.device)
    last = torch.full((len(streams), 1), model.start_id, device=keys.device)
    going = torch.ones(len(streams), dtype=torch.bool, device=keys.device)
    sound = torch.ones((), dtype=torch.bool, device=keys.device)
    cache = None
    for place in range(model.config.query_length):
        out = hf(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            decoder_input_ids=last,
            past_key_values=cache,
            use_cache=True,
        )
        cache, logits = out.past_key_values, out.logits[:, -1]
        sound &= (logits < float("inf")).all()
        token = draw(logits, mixed(streams + place), top_p, top_k, temperature)
        written[:, place] = torch.where(going, token, written[:, place])
        going &= ~torch.isin(token, ends)
        if not going.any():
            break
        last = token[:, None]
    if not sound:
        raise InputError("the model gives numbers that are not finite", "", "give --precision fp32, or another model")
    return written.view(len(keys), each, -1)


def draw(logits: Tensor, streams: Tensor, top_p: float, top_k: int, temperature: float) -> Tensor:
    """One token of each row of logits [n, vocabulary], int64 [n]; `streams` int64 [n] decide which."""
    best, tokens = (logits.float() / temperature).topk(min(top_k, logits.shape[1]) if top_k else logits.shape[1], dim=1)
    shares = best.softmax(dim=1)
    before = shares.cumsum(dim=1) - shares
    noise = gumbel(mixed(streams[:, None] + tokens))
    chosen = (best + noise).masked_fill(before >= top_p, float("-inf")).argmax(dim=1, keepdim=True)
    return tokens.gather(1, chosen).squeeze(1)


def gumbel(bits: Tensor) -> Tensor:
    """Gumbel noise, float32, from 64 random bits each: -log(-log u), u of 2^24 equal steps within (0, 1)."""
    uniform = (_right(bits, 40).double() + 0.5) / 2**24
    return -(-uniform.log()).log().float()


def mixed(x: Tensor) -> Tensor:
    """A random-looking 64-bit number for each int64 (SplitMix64, Steele et al. 2014); sums and products wrap around."""
    x = x + _GOLDEN
    x = (x ^ _right(x, 30)) * _MIX_1
    x = (x ^ _right(x, 27)) * _MIX_2
    return x ^ _right(x, 31)


def _right(x: Tensor, bits: int) -> Tensor:
    """A shift that fills with zeros; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
