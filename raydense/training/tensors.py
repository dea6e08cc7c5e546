"""Functions for losses and batches of several methods: padding, known positives, accuracy, and gathering vectors of all workers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from raydense.models.tokens import Tokens
from raydense.ranges import ranges
from raydense.training.part import Part


class Tokenizes(Protocol):
    """A model with a tokenizer."""

    tokenizer: Any


def pad(model: Tokenizes, tokens: Tokens) -> dict[str, Tensor]:
    """Tokens as a padded batch on the CPU."""
    return tokens.pad(model.tokenizer.pad_id)


def known_positives(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each of the passages at `rows` is a known positive of each query, by row or by equal text: bool [n, len(rows)]."""
    of_query, of_passage = text_hash[mine.known.values], text_hash[rows]
    order = np.argsort(of_passage, kind="stable")
    low, high = (np.searchsorted(of_passage[order], of_query, side) for side in ("left", "right"))
    counts = high - low
    found = np.zeros((len(mine), len(rows)), np.bool_)
    found[np.repeat(mine.known.owner, counts), order[ranges(low, counts)]] = True
    return found


def known_of_lists(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each passage of a query's own list is a known positive of it, by row or by equal text: bool of the shape [n, m] of `rows`."""
    known, column = np.nonzero(text_hash[rows][mine.known.owner] == text_hash[mine.known.values][:, None])
    found = np.zeros(rows.shape, np.bool_)
    found[mine.known.owner[known], column] = True
    return found


def accuracy(scores: Tensor, positive: Tensor, mask: Tensor) -> Tensor:
    """The share of queries whose positive has the highest unmasked score."""
    column, scores = positive.unsqueeze(1), scores.detach()
    highest = scores.masked_fill(mask.scatter(1, column, True), float("-inf")).amax(dim=1)
    return (scores.gather(1, column).squeeze(1) > highest).float().mean()


# PyTorch 2.13's name of what was `reduce_scatter_tensor`.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Gather(torch.autograd.Function):
    """The concatenated tensors of all workers; the gradient of each is summed over workers and returned to its worker."""

    @staticmethod
    def forward(context: Any, mine: Tensor) -> Tensor:
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        given = gradients[0].contiguous()
        mine = given.new_empty(len(given) // dist.get_world_size(), *given.shape[1:])
        _reduce_scatter(mine, given)
        return mine


def gather(mine: Tensor) -> Tensor:
    """All workers' vectors [workers * n, d] from this worker's [n, d], with their gradients."""
    return _Gather.apply(mine)
