"""Several positives a query: a retriever by softmax-scaled binary cross-entropy (multiple positive passages, eq. 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raydense.settings import setting
from raydense.training.method import Batch, Draws, Metrics, Outputs, method
from raydense.training.methods.retriever import Retriever, compared

if TYPE_CHECKING:
    from torch import Tensor


@method("multi-positive")
class MultiPositive(Retriever):
    """Up to `positives` positives of each query at each step; every known positive in the batch counts as one."""

    class Settings(Retriever.Settings):
        """Train a retriever from several positives a query."""

        positives: int = setting(1, "how many positives of a query a step learns from, at most", ge=1)

    @classmethod
    def draws(cls, settings: Any) -> Draws:
        return replace(super().draws(settings), positives=settings.positives)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; `accuracy` is the share of queries whose first positive scores above all negatives."""
        from raydense.models import losses
        from raydense.training.accuracy import accuracy

        queries, passages = self.vectors(outputs)
        scores = compared(queries, passages)
        loss = losses.softmax_binary(scores, batch["known"], batch["out"], self.temperature)
        return loss, {"accuracy": accuracy(scores, batch["positive"], batch["known"] | batch["out"])}
