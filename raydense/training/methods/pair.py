"""PAIR: the query-centric and the passage-centric loss together (its stage 1; stage 2 is the method `retriever`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from raydense.settings import setting
from raydense.training.method import Batch, Held, Metrics, Outputs, method
from raydense.training.methods.retriever import Retriever, compared

if TYPE_CHECKING:
    from torch import Tensor

    from raydense.training.part import Part


@method("pair")
class Pair(Retriever):
    """L = (1 - alpha) L_Q + alpha L_P (PAIR eq. 6); with separate encoders s(p+, p-) = E_P(p+) . E_P(p-), as its eq. 4 has it.

    L_P has the negatives of L_Q, and with `in_batch_queries` also the batch's other queries, except those that p+ answers. The
    published code has these queries and the hard negatives, but not the other queries' positives, which are in the sum here.
    """

    class Settings(Retriever.Settings):
        """Train a retriever by PAIR's query-centric and passage-centric losses."""

        shared: bool | None = setting(True, "one encoder for queries and passages; false trains two, the paper's ablation")
        alpha: float = setting(0.1, "weight of the passage-centric loss; that of the query-centric loss is 1 - alpha", ge=0, le=1)
        in_batch_queries: bool = setting(
            False, "in the passage-centric loss also use the batch's other queries as negatives, next to its passages"
        )

        @model_validator(mode="after")
        def _fits_pair(self) -> Self:
            if self.in_batch_queries and not self.in_batch:
                raise ValueError("in_batch_queries needs in_batch")
            return self

    @classmethod
    def held(cls, settings: Any) -> Held:
        held = super().held(settings)
        return replace(held, scores=2 * held.scores)

    def prepare(self, part: Part) -> Batch:
        """As `Retriever.prepare`; `answered` bool [n, queries]: which of the queries each positive is a known positive of."""
        import numpy as np
        import torch

        from raydense.training.known import known_positives

        batch = super().prepare(part)
        if self.settings.in_batch_queries:
            mine = part.slice_of(self.rank, self.workers).positives[:, 0]
            of_each = [known_positives(s, mine, self.texts.store.text_hash).T for s in self.seen(part)]
            batch["answered"] = torch.from_numpy(np.concatenate(of_each, axis=1))
        return batch

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; `query_centric` is L_Q, `passage_centric` is L_P."""
        from raydense.models import losses
        from raydense.training.accuracy import accuracy

        queries, passages = self.vectors(outputs)
        positive, mask, tau = batch["positive"], batch["known"] | batch["out"], self.temperature
        scores = compared(queries, passages)
        own = passages[positive] if self.settings.in_batch else passages[:, 0]
        query_centric = losses.query_centric(scores, positive, mask, tau)
        passage_centric = losses.passage_centric(scores, compared(own, passages), positive, mask, tau, self._others(own, queries, batch))
        alpha = self.settings.alpha
        return (1 - alpha) * query_centric + alpha * passage_centric, {
            "query_centric": query_centric.detach(),
            "passage_centric": passage_centric.detach(),
            "accuracy": accuracy(scores, positive, mask),
        }

    def _others(self, own: Tensor, queries: Tensor, batch: Batch) -> Tensor | None:
        """s(p+, q) of each positive with the queries that it does not answer, -inf with those that it does."""
        from raydense.training.gather import gather

        if "answered" not in batch:
            return None
        gathered = gather(queries) if self.gathers else queries
        return (own @ gathered.T).masked_fill(batch["answered"], float("-inf"))
