"""KL distillation: a retriever learns a teacher's distribution over each query's list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydense.settings import setting
from raydense.training.dual_encoder import DualEncoderMethod
from raydense.training.method import Batch, Metrics, Outputs, method

if TYPE_CHECKING:
    from torch import Tensor


@method("kl")
class KL(DualEncoderMethod):
    """L = mean_q sum_{p in P_q} S_t log(S_t / S), S and S_t the softmax over the query's own list of s / tau and of t / tau_t."""

    needs_scores = True

    class Settings(DualEncoderMethod.Settings):
        """Train a retriever to follow a teacher's distribution over each query's list (KL divergence)."""

        teacher_temperature: float = setting(1.0, "tau_t, the teacher's scores are divided by it", gt=0)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; `accuracy` is the share of queries whose positive has the highest score of its list."""
        import torch

        from raydense.models.losses import listwise_distillation
        from raydense.training.accuracy import accuracy

        scores = self.list_scores(outputs) / self.temperature
        loss = listwise_distillation(scores, batch["teacher"] / self.settings.teacher_temperature, direction="ce_de")
        first, nothing = torch.zeros(len(scores), dtype=torch.int64, device=scores.device), torch.zeros_like(scores, dtype=torch.bool)
        return loss, {"accuracy": accuracy(scores, first, nothing)}
