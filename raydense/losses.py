"""Losses: pure functions of tensors, computed in log-space in float32 (float64 where that is given), to be read beside their equations.

s is a score, tau the temperature; a loss is a mean over what it says, so that it does not change its size with the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def query_centric(scores: Tensor, positive: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """L_Q = -mean_q log [ e^{s(q,p+)/tau} / (e^{s(q,p+)/tau} + sum_{p-} e^{s(q,p-)/tau}) ].

    DPR eq. 2, RocketQA, PAIR eq. 3; with temperature, query-as-context eq. 12.

    `scores` [nq, np] of every query with every passage of the batch; `positive` int64 [nq], the column of each query's p+;
    `mask` bool [nq, np], True where a passage is another known positive of the query (by id or by equal text), or is padding:
    it is no negative. A True at the positive itself is of no effect. Returns a scalar.
    """
    logits = _exact(scores) / temperature
    if mask is not None:
        others = mask.scatter(1, positive.unsqueeze(1), False)
        logits = logits.masked_fill(others, float("-inf"))
    return (logits.logsumexp(dim=1) - logits.gather(1, positive.unsqueeze(1)).squeeze(1)).mean()


def listwise(scores: Tensor, valid: Tensor | None = None) -> Tensor:
    """L_sup = -mean_q log [ e^{s(q,p+)} / sum_{p in P_q} e^{s(q,p)} ].

    RocketQAv2 eq. 5 with one positive a list. `scores` [nq, m], the positive in column 0; `valid` bool [nq, m], False where a
    list is shorter than m. Returns a scalar.
    """
    first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    return query_centric(scores, first, None if valid is None else ~valid)


def pointwise(scores: Tensor, labels: Tensor, valid: Tensor | None = None) -> Tensor:
    """Binary cross-entropy, -mean [ y log sigmoid(s) + (1 - y) log(1 - sigmoid(s)) ] over the valid pairs.

    RocketQA section 3.2, DuReader-retrieval. `scores` and `labels` (0 to 1) of one shape; `valid` bool of that shape, False for
    padding. Returns a scalar, 0 where nothing is valid.
    """
    exact = _exact(scores)
    each = binary_cross_entropy_with_logits(exact, labels.to(exact.dtype), reduction="none")
    if valid is None:
        return each.mean()
    return each.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)


def _exact(scores: Tensor) -> Tensor:
    """Half precision to float32; a sum of many exponentials has no accuracy in it."""
    return scores if scores.dtype == torch.float64 else scores.float()
