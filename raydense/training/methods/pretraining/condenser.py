"""Condenser (Gao and Callan 2021): a head predicts the masked tokens again, from the late [CLS] and early token states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raydense.settings import setting
from raydense.training.method import Batch, Metrics, Outputs, method
from raydense.training.methods.pretraining.mlm import Mlm

if TYPE_CHECKING:
    from torch import Tensor

    from raydense.models.pretraining import PretrainModel


@method("condenser")
class Condenser(Mlm):
    """L = L_mlm + L_aux: the head predicts the same tokens (query-as-context eq. 6), with only the [CLS] from the late layers."""

    class Settings(Mlm.Settings):
        """Pre-train an encoder by masked tokens and Condenser's head."""

        layers: int = setting(2, "layers of Condenser's head; they are dropped at the end", ge=1)
        skip_from: int | None = setting(None, "the layer whose token states the head reads; by default half of all layers", ge=0)

    @classmethod
    def kind(cls) -> type[PretrainModel]:
        from raydense.models.pretraining import Condenser

        return Condenser

    @classmethod
    def shape(cls, settings: Any) -> dict[str, Any]:
        return {"layers": settings.layers, "skip_from": settings.skip_from}

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Mlm.loss`; `aux` is L_aux."""
        found, again = self.masked_loss(outputs, 1, batch), self.masked_loss(outputs, 2, batch)
        return found + again, {"mlm": found.detach(), "aux": again.detach()}
