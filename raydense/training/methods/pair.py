"""PAIR: the query-centric and the passage-centric loss together (its stage 1; stage 2 is the objective `retriever`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raydense.models import losses
from raydense.training.batches import Part
from raydense.training.methods.method import Batch, Metrics, Outputs, accuracy, gather, known_positives
from raydense.training.methods.retriever import Retriever


class Pair(Retriever):
    """L = (1 - alpha) L_Q + alpha L_P (PAIR eq. 6), with one encoder for queries and passages.

    L_P has the negatives of L_Q, and with `in_batch_queries` the batch's other queries too, but for those that p+ answers.
    """

    def prepare(self, part: Part) -> Batch:
        """As `Retriever.prepare`; `answered` bool [n, queries]: which of the queries each positive is a known positive of."""
        batch = super().prepare(part)
        if self.settings.in_batch_queries:
            mine = part.slice_of(self.rank, self.workers).positives[:, 0]
            of_each = [known_positives(s, mine, self.texts.store.text_hash).T for s in self.seen(part)]
            batch["answered"] = torch.from_numpy(np.concatenate(of_each, axis=1))
        return batch

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`; the metrics tell L_Q and L_P apart."""
        queries, passages = self.vectors(outputs)
        positive, mask, tau = batch["positive"], batch["known"] | batch["out"], self.temperature
        scores = queries @ passages.T
        own = passages[positive]
        query_centric = losses.query_centric(scores, positive, mask, tau)
        passage_centric = losses.passage_centric(scores, own @ passages.T, positive, mask, tau, self._others(own, queries, batch))
        alpha = self.settings.alpha
        return (1 - alpha) * query_centric + alpha * passage_centric, {
            "query_centric": query_centric.detach(),
            "passage_centric": passage_centric.detach(),
            "accuracy": accuracy(scores, positive, mask),
        }

    def _others(self, own: Tensor, queries: Tensor, batch: Batch) -> Tensor | None:
        """s(p+, q) of each positive with the queries that it does not answer, -inf with those that it does."""
        if "answered" not in batch:
            return None
        everyone = gather(queries) if self._gathers else queries
        return (own @ everyone.T).masked_fill(batch["answered"], float("-inf"))
