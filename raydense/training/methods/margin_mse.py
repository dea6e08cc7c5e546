"""Margin MSE: a retriever learns a teacher's margins (Hofstätter et al. 2020, eq. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from raydense.settings import setting
from raydense.training.dual_encoder import DualEncoderMethod
from raydense.training.method import Batch, Metrics, Outputs, method

if TYPE_CHECKING:
    from torch import Tensor


@method("margin-mse")
class MarginMSE(DualEncoderMethod):
    """L = mean over q, p- of [ (s(q, p+) - s(q, p-)) - (t(q, p+) - t(q, p-)) / tau ]^2, t the teacher's scores of the query's own list."""

    needs_scores = True

    class Settings(DualEncoderMethod.Settings):
        """Train a retriever to follow a teacher's margins (Margin MSE)."""

        teacher_temperature: float = setting(1.0, "tau, the teacher's margins are divided by it", gt=0)

        @model_validator(mode="after")
        def _fits_margins(self) -> Self:
            self._refuse_given(["temperature"], "objective margin-mse")
            return self

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; `accuracy` is the share of negatives that score below the positive."""
        scores, teacher = self.list_scores(outputs), batch["teacher"]
        margins = scores[:, :1] - scores[:, 1:]
        wanted = (teacher[:, :1] - teacher[:, 1:]) / self.settings.teacher_temperature
        return (margins - wanted).square().mean(), {"accuracy": (margins.detach() > 0).float().mean()}
