"""Losses: pure functions of tensors, computed in log-space in float32 (float64 where that is given), to be read next to their equations.

s is a score, tau the temperature. A loss is a mean, so its size does not depend on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def query_centric(scores: Tensor, positive: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """L_Q = -mean_q log [ e^{s(q,p+)/tau} / (e^{s(q,p+)/tau} + sum_{p-} e^{s(q,p-)/tau}) ].

    DPR eq. 2, RocketQA, PAIR eq. 3; with temperature, query-as-context eq. 12.

    `scores` [nq, np] of every query with every passage of the batch; `positive` int64 [nq], the column of each query's p+;
    `mask` bool [nq, np], True for a passage that is another known positive of the query (by id or by equal text), or padding:
    it is not used as a negative. True at the positive itself has no effect. Returns a scalar.
    """
    logits = exact(scores) / temperature
    if mask is not None:
        others = mask.scatter(1, positive.unsqueeze(1), False)
        logits = logits.masked_fill(others, float("-inf"))
    return (logits.logsumexp(dim=1) - logits.gather(1, positive.unsqueeze(1)).squeeze(1)).mean()


def passage_centric(
    scores: Tensor, among: Tensor, positive: Tensor, mask: Tensor | None = None, temperature: float = 1.0, others: Tensor | None = None
) -> Tensor:
    """L_P = -mean_q log [ e^{s(p+,q)} / (e^{s(p+,q)} + sum_{p-} e^{s(p+,p-)}) ], PAIR eq. 5; scores are divided by tau.

    `scores`, `positive` and `mask` as of `query_centric`; `among` [nq, np], s(p+, p) of each query's positive with every passage.
    `others` [nq, n], if given, are more scores of p+ in the sum, -inf for none, such as those with the batch's other queries. PAIR's
    published code sums over queries and hard negatives, without the other queries' positives; `among` has these. Returns a scalar.
    """
    column = positive.unsqueeze(1)
    own = exact(scores).gather(1, column)
    logits = exact(among).scatter(1, column, own)
    if others is not None:
        logits = torch.cat([logits, exact(others)], dim=1)
        mask = None if mask is None else torch.cat([mask, torch.zeros_like(others, dtype=torch.bool)], dim=1)
    return query_centric(logits, positive, mask, temperature)


def softmax_binary(scores: Tensor, relevant: Tensor, absent: Tensor, temperature: float = 1.0) -> Tensor:
    """-mean_q [ sum_{p+} log sigmoid(f(q,p+)) + sum_{p-} log(1 - sigmoid(f(q,p-))) ], f the softmax over the batch of s(q, .)/tau.

    Multiple positives eq. 3. `scores` [nq, np]; `relevant` bool [nq, np], every known positive of each query; `absent`
    bool [np] or [nq, np], True for padding, which is ignored. Returns a scalar.
    """
    share = (exact(scores) / temperature).masked_fill(absent, float("-inf")).softmax(dim=1)
    each = -logsigmoid(torch.where(relevant, share, -share))
    return each.masked_fill(absent, 0.0).sum(dim=1).mean()


def listwise_distillation(retriever: Tensor, reranker: Tensor, valid: Tensor | None = None, direction: str = "de_ce") -> Tensor:
    """L_KL = mean_q sum_{p in P_q} S_de log(S_de / S_ce), S the softmax over the list; RocketQAv2 eq. 2-4.

    `retriever` and `reranker` are scores [nq, m] of the same lists; `valid` bool [nq, m], False where a list is shorter than m.
    `direction` "ce_de" swaps the two, as RocketQAv2's published code does. Gradients flow into both. Returns a scalar.
    """
    de, ce = _log_share(retriever, valid), _log_share(reranker, valid)
    first, second = (de, ce) if direction == "de_ce" else (ce, de)
    each = first.exp() * (first - second)
    if valid is not None:
        each = each.masked_fill(~valid, 0.0)
    return each.sum(dim=1).mean()


def _log_share(scores: Tensor, valid: Tensor | None) -> Tensor:
    """Log-softmax over each list; 0 at padding, which avoids NaN gradients."""
    if valid is None:
        return exact(scores).log_softmax(dim=1)
    return exact(scores).masked_fill(~valid, float("-inf")).log_softmax(dim=1).masked_fill(~valid, 0.0)


def listwise(scores: Tensor, valid: Tensor | None = None) -> Tensor:
    """L_sup = -mean_q log [ e^{s(q,p+)} / sum_{p in P_q} e^{s(q,p)} ].

    RocketQAv2 eq. 5 with one positive a list. `scores` [nq, m], the positive in column 0; `valid` bool [nq, m], False where a
    list is shorter than m. Returns a scalar.
    """
    first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    return query_centric(scores, first, None if valid is None else ~valid)


def pointwise(scores: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, -mean [ y log sigmoid(s) + (1 - y) log(1 - sigmoid(s)) ].

    RocketQA section 3.2, DuReader-retrieval. `scores` and `labels` (0 to 1) of one shape. Returns a scalar.
    """
    logits = exact(scores)
    return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean()


def masked_tokens(log_likelihood: Tensor, count: Tensor) -> Tensor:
    """L_mlm = -1/|mask_pos| sum_{i in mask_pos} log phi(h_i)[x_i], the cross-entropy of the masked tokens.

    query-as-context eq. 4, 6 and 10; the paper writes the sum, its code takes this mean. `log_likelihood` [n], of each text, summed
    over its masked tokens; `count`, the number of those tokens, of each text or in total. If workers average their gradients it is
    the masked tokens of all workers divided by the number of workers. Returns a scalar, 0 if nothing is masked.
    """
    summed, tokens = exact(log_likelihood).sum(), count.sum()
    return -summed / tokens.where(tokens > 0, 1)


def span_contrastive(scores: Tensor, positive: Tensor, left_out: Tensor, temperature: float = 1.0) -> Tensor:
    """L_co = -mean_x log [ e^{h_x.h_y/tau} / sum_{h' in B, h' != h_x} e^{h_x.h'/tau} ], query-as-context eq. 5.

    `scores` [n, m], h_x.h' of each span with all spans of the batch, across all workers with cross-batch negatives; `positive` int64 [n],
    the column of the other span of its pair; `left_out` bool [n, m], True at the span itself, as in coCondenser's code (the
    paper's sum includes it), and at any other span whose text equals that of the span or of its pair: equal texts are not
    negatives, and the paper's corpus has none. Returns a scalar.
    """
    return query_centric(scores, positive, left_out, temperature)


def exact(scores: Tensor) -> Tensor:
    """Half precision to float32: a sum of many exponentials is not accurate in half precision."""
    return scores if scores.dtype == torch.float64 else scores.float()
