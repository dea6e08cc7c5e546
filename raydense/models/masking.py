"""Which tokens of a text are masked, for a model to predict (masked language modelling)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NOT_MASKED = -100
_HIDDEN, _REPLACED = 0.8, 0.9


def mask_tokens(
    input_ids: Tensor, attention_mask: Tensor, special_ids: Sequence[int], vocabulary: int, mask_id: int, share: float, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose each token with probability `share`; of the chosen, 80% become [MASK], 10% any of the vocabulary, 10% stay (BERT, 3.1).

    `input_ids` and `attention_mask` int64 [n, length]; never chosen are padding and the tokens in `special_ids`. Tokens are chosen
    one by one, as in query-as-context section 2; its published code chooses whole words.

    `draws` float64 [n, length or more], uniform in [0, 1), one per token, decides everything: a text with the same row of `draws`
    is masked the same way in any batch and with any padding.

    Returns the ids that the model reads and its labels, both int64 [n, length]: the token itself where chosen, else `NOT_MASKED`.
    """
    draws = draws[:, : input_ids.shape[1]]
    special = torch.isin(input_ids, torch.tensor(list(special_ids), dtype=input_ids.dtype))
    chosen = (draws < share) & ~special & (attention_mask != 0)
    replaced = chosen & (draws >= _HIDDEN * share) & (draws < _REPLACED * share)
    # what is left of a draw that fell into the tenth to be replaced is uniform again, and names the token
    left = (draws[replaced] / share - _HIDDEN) / (_REPLACED - _HIDDEN)
    masked = input_ids.masked_fill(chosen & (draws < _HIDDEN * share), mask_id)
    masked[replaced] = (left * vocabulary).long().clamp(0, vocabulary - 1)
    return masked, input_ids.masked_fill(~chosen, NOT_MASKED)


def masked_places(labels: Tensor) -> Tensor:
    """Where tokens are masked in `labels` [n, length]: int64 [m], places in the flattened labels, rising."""
    return (labels != NOT_MASKED).flatten().nonzero().squeeze(1)
