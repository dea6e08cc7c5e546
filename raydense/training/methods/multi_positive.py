"""Several positives a query: a retriever by softmax-scaled binary cross-entropy (multiple positive passages, eq. 3)."""

from __future__ import annotations

from torch import Tensor

from raydense.models import losses
from raydense.training.methods.method import Batch, Metrics, Outputs, accuracy
from raydense.training.methods.retriever import Retriever


class MultiPositive(Retriever):
    """Up to `positives` positives of each query at each step; every known positive in the batch counts as one."""

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`; `accuracy` is the share of queries whose first positive beats all that are none."""
        queries, passages = self.vectors(outputs)
        scores = queries @ passages.T
        loss = losses.softmax_binary(scores, batch["known"], batch["out"], self.temperature)
        return loss, {"accuracy": accuracy(scores, batch["positive"], batch["known"] | batch["out"])}
