"""The metric `accuracy` of methods whose positive is to score above the rest."""

from __future__ import annotations

from torch import Tensor


def accuracy(scores: Tensor, positive: Tensor, mask: Tensor) -> Tensor:
    """The share of queries whose positive has the highest unmasked score."""
    column, scores = positive.unsqueeze(1), scores.detach()
    highest = scores.masked_fill(mask.scatter(1, column, True), float("-inf")).amax(dim=1)
    return (scores.gather(1, column).squeeze(1) > highest).float().mean()
