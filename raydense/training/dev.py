"""Measures the dev metrics during training: of a retriever over a small set of passages, of a re-ranker over the first hits of a run.

The work is split over the workers; each has the same number of batches, as ZeRO 3 requires. Worker 0 compares the vectors, a block of queries
at a time, and sends the metrics to the others: what follows from them is the same on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.sharded import OnAllWorkers
from raydense.models.tokens import Batch, Tokens
from raydense.training.dev_sets import METRIC, METRICS, DevSet
from raydense.training.engine import Engine
from raydense.training.gather import gather
from raydense.training.ragged import Ints
from raydense.training.texts import Texts

_BATCH = 64  # texts, or pairs, that go through the model at once, at most
_AT_ONCE = 2**23  # scores that are compared at once


class Dev:
    """This worker's share of a dev set, tokenised; measures the retriever or the re-ranker of the model."""

    def __init__(self, dev: DevSet, model: nn.Module, texts: Texts, rank: int, workers: int, micro_batch: int = 0) -> None:
        """No more than four times `micro_batch` texts go through the model at once: without gradients each takes less; 0: no such limit."""
        kind = DualEncoder if dev.absent is None else CrossEncoder
        model = next(part for part in model.modules() if isinstance(part, kind))
        self.dev, self.model, self.rank, self.workers = dev, model, rank, workers
        self._at_once = min(_BATCH, 4 * micro_batch or _BATCH)
        if isinstance(model, DualEncoder):
            self._queries = self._share(model.tokenize_queries(texts.queries(self._mine(len(dev.query), dev.query))))
            self._passages = self._share(model.tokenize_passages(texts.passages(self._mine(len(dev.rows), dev.rows))))
        elif isinstance(model, CrossEncoder):
            pairs = np.repeat(dev.query, dev.rows.shape[1])
            queries, rows = self._mine(len(pairs), pairs), self._mine(len(pairs), dev.rows.ravel())
            self._pairs = self._share(model.tokenize_pairs(texts.queries(queries), texts.passages(rows)))

    def _mine(self, total: int, values: Ints) -> Ints:
        """This worker's share of `values`; all shares have the same size, and the last ones are padded with the last value."""
        share = -(-total // self.workers)
        return values[np.minimum(np.arange(self.rank * share, (self.rank + 1) * share), total - 1)]

    @staticmethod
    def _share(tokens: Tokens) -> tuple[Tokens, Ints]:
        """The tokens, and their order by length, which reduces padding."""
        return tokens, np.argsort(tokens.lengths, kind="stable")

    def measure(self, engine: Engine) -> dict[str, float]:
        """The metrics by name, the same on every worker: `METRICS`, of a re-ranker without the recall, which its order does not change.

        Of queries of several sources also the first of these for each source, as `mrr@10 of NAME`. InputError, on all workers, if a score is not a number.
        """
        engine.module.eval()
        with torch.no_grad():
            found = self._of_retriever(engine) if isinstance(self.model, DualEncoder) else self._of_reranker(engine)
        engine.module.train()
        if self.workers > 1:
            dist.broadcast(found, src=0)
        values = found.tolist()
        if any(math.isnan(value) for value in values):
            fix = "lower --lr, clip the gradient with --clip, or give --precision fp32"
            raise OnAllWorkers("the dev scores are not numbers", "train", fix)
        of_source = dict(zip((f"{METRIC} of {name}" for name in self.dev.sources), values[len(METRICS) :], strict=True))
        return dict(zip(METRICS if self.dev.absent is None else METRICS[:2], values, strict=False)) | of_source

    def _of_retriever(self, engine: Engine) -> Tensor:
        queries = gather(self._outputs(engine, self._queries, "queries"))[: len(self.dev.query)].float()
        passages = gather(self._outputs(engine, self._passages, "passages"))[: len(self.dev.rows)].float()
        return self._means(len(queries), lambda block: queries[block] @ passages.T, engine.device)

    def _of_reranker(self, engine: Engine) -> Tensor:
        scores = gather(self._outputs(engine, self._pairs, "pairs"))[: self.dev.rows.size].float().view(self.dev.rows.shape)
        absent = torch.from_numpy(self.dev.absent).to(engine.device)
        return self._means(len(scores), lambda block: scores[block].masked_fill(absent[block], -math.inf), engine.device)

    def _means(self, queries: int, score: Callable[[slice], Tensor], device: torch.device) -> Tensor:
        """The mean of each metric over the queries, and of the first over those of each source, float32 [3 + sources]; worker 0 computes it."""
        summed = torch.zeros(len(METRICS), device=device)
        of_source = torch.zeros(len(self.dev.sources), device=device)
        masks = torch.from_numpy(np.stack([*self.dev.sources.values()])).to(device).float() if self.dev.sources else None
        step = max(1, _AT_ONCE // max(1, self.dev.rows.shape[-1]))
        for at in range(0, queries if self.rank == 0 else 0, step):
            block = slice(at, min(at + step, queries))
            found = of_queries(score(block), torch.from_numpy(self.dev.relevant_of(block)).to(device))
            summed += found.sum(dim=1)
            if masks is not None:
                of_source += masks[:, block] @ found[0]
        return torch.cat([summed / queries, of_source if masks is None else of_source / masks.sum(dim=1)])

    def _outputs(self, engine: Engine, share: tuple[Tokens, Ints], side: str) -> Tensor:
        tokens, order = share
        found = [_one(engine.forward(**{side: batch})) for batch in self._batches(tokens, order, engine.device)]
        back = torch.from_numpy(np.argsort(order)).to(engine.device)
        return torch.cat(found)[back]

    def _batches(self, tokens: Tokens, order: Ints, device: torch.device) -> Iterator[Batch]:
        for start in range(0, len(order), self._at_once):
            yield tokens.select(order[start : start + self._at_once]).pad(self.model.tokenizer.pad_id, device)


def _one(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else next(o for o in output if o is not None)


def of_queries(scores: Tensor, relevant: Tensor) -> Tensor:
    """MRR@10, nDCG@10 and recall@100 of each query, float32 [3, n]; all 0 where none is relevant, NaN where a score is NaN.

    scores float [n, p], relevant bool [n, p]: candidates, of which equal scores rank the earlier column first.
    """
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :100]
    hit, there = relevant.gather(1, order).float(), relevant.sum(dim=1).clamp(min=1)
    first = hit[:, :10]
    discount = 1 / torch.arange(2, 2 + first.shape[1], device=scores.device).log2()
    ideal = discount.cumsum(0)[there.clamp(max=len(discount)) - 1]
    reciprocal = (first / torch.arange(1, 1 + first.shape[1], device=scores.device)).amax(dim=1)
    found = torch.stack([reciprocal, (first * discount).sum(dim=1) / ideal, hit.sum(dim=1) / there])
    return found.masked_fill(scores.isnan().any(dim=1), math.nan)
