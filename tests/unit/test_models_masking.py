"""Masking: who is chosen and what becomes of them, against binomial bounds and a reading of BERT's rule token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raydense.models.masking import NOT_MASKED, mask_tokens

SPECIAL, VOCABULARY, MASK = [0, 1, 2, 3, 4], 5_000, 4


def batch(seed, n, length, vocabulary=VOCABULARY):
    """Random texts of 2 to `length` tokens: [CLS], words and [UNK], [SEP], padding; and the draws for them, wider than they are."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, n)
    ids = np.where(rng.random((n, length)) < 0.1, 1, rng.integers(5, vocabulary, (n, length)))
    real = np.arange(length) < lengths[:, None]
    ids[:, 0], ids[np.arange(n), lengths - 1] = 2, 3
    ids[~real] = 0
    return torch.tensor(ids), torch.tensor(real.astype(np.int64)), torch.tensor(rng.random((n, length + 7)))


def within(count, trials, share):
    """Within six standard deviations of a binomial's mean: some 1 in 10^9 by chance."""
    return abs(count - trials * share) <= 6 * np.sqrt(trials * share * (1 - share)) + 1


def rule(token, real, draw, share):
    """BERT's rule for one token."""
    if not real or token in SPECIAL or draw >= share:
        return token, NOT_MASKED
    if draw < 0.8 * share:
        return MASK, token
    if draw < 0.9 * share:
        return int((draw / share - 0.8) / (0.9 - 0.8) * VOCABULARY), token
    return token, token


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.15, 0.3, 0.45, 1.0]))
@settings(max_examples=25)
def test_it_is_the_rule_token_by_token(seed, share):
    ids, real, draws = batch(seed, 6, 40)
    masked, labels = mask_tokens(ids, real, SPECIAL, VOCABULARY, MASK, share, draws)
    wanted = [[rule(*token, share) for token in zip(*row, strict=False)] for row in zip(ids.tolist(), real, draws.tolist(), strict=True)]
    assert [list(zip(*row, strict=True)) for row in zip(masked.tolist(), labels.tolist(), strict=True)] == wanted
    assert masked.dtype == labels.dtype == torch.int64


@given(st.integers(0, 2**32), st.sampled_from([0.15, 0.3, 0.45]))
@settings(max_examples=25)
def test_shares(seed, share):
    ids, real, draws = batch(seed, 300, 120)
    before = ids.clone()
    masked, labels = mask_tokens(ids, real, SPECIAL, VOCABULARY, MASK, share, draws)
    assert torch.equal(ids, before)
    words = (real != 0) & (ids > 4)
    chosen = labels != NOT_MASKED
    assert not (chosen & ~words).any()
    assert torch.equal(masked[~chosen], ids[~chosen])
    assert torch.equal(labels[chosen], ids[chosen])
    n = int(chosen.sum())
    hidden, kept = int((masked == MASK)[chosen].sum()), int((masked == ids)[chosen].sum())
    assert within(n, int(words.sum()), share)
    assert within(hidden, n, 0.8 + 0.1 / VOCABULARY)
    assert within(kept, n, 0.1 + 0.1 / VOCABULARY)
    replaced = masked[chosen & (masked != MASK) & (masked != ids)]
    assert within(len(replaced), n, 0.1)
    assert within(int((replaced < VOCABULARY // 2).sum()), len(replaced), 0.5)
    assert replaced.min() >= 0
    assert replaced.max() < VOCABULARY


def test_replacements_reach_the_whole_vocabulary():
    ids, real = torch.full((1, 40_000), 7), torch.ones(1, 40_000, dtype=torch.int64)
    masked, _ = mask_tokens(ids, real, [], 20, 30, 0.5, torch.tensor(np.random.default_rng(0).random((1, 40_000))))
    counts = torch.bincount(masked[0][(masked[0] != 30) & (masked[0] != 7)], minlength=20)
    assert (counts[torch.arange(20) != 7] > 50).all()
    edge = torch.tensor([[np.nextafter(0.9 * 0.3, 0), 0.8 * 0.3]])
    assert mask_tokens(ids[:, :2], real[:, :2], [], 20, 30, 0.3, edge)[0].tolist() == [[19, 0]]


@pytest.mark.parametrize("rows", [[3], [5, 1], [4, 3, 2]])
def test_a_text_is_masked_alike_in_any_batch_and_with_any_padding(rows):
    ids, real, draws = batch(11, 6, 40)
    masked, labels = mask_tokens(ids, real, SPECIAL, VOCABULARY, MASK, 0.3, draws)
    longest = int(real[rows].sum(dim=1).max())
    some = mask_tokens(ids[rows, :longest], real[rows, :longest], SPECIAL, VOCABULARY, MASK, 0.3, draws[rows])
    assert torch.equal(some[0], masked[rows, :longest])
    assert torch.equal(some[1], labels[rows, :longest])
