"""CoT-MAE (Wu et al. 2023; query-as-context): a decoder predicts the masked tokens of the context from the passage's [CLS]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raydense.settings import setting
from raydense.training.method import Batch, Metrics, Outputs, method
from raydense.training.methods.pretraining.mlm import Mlm
from raydense.training.settings import ContextSettings

if TYPE_CHECKING:
    from torch import Tensor

    from raydense.models.pretraining import PretrainModel


@method("cotmae")
class CotMae(Mlm):
    """L = L_mlm + L_ctx (query-as-context eq. 11): the decoder reads only the late [CLS] of the passage."""

    class Settings(Mlm.Settings, ContextSettings):
        """Pre-train an encoder by masked tokens and a decoder of contexts."""

        mask: float = setting(0.3, "share of a passage's tokens to mask", gt=0, lt=1)
        context_mask: float = setting(0.45, "share of a context's tokens to mask", gt=0, lt=1)
        layers: int = setting(2, "layers of CoT-MAE's decoder; they are dropped at the end", ge=1)

    @classmethod
    def kind(cls) -> type[PretrainModel]:
        from raydense.models.pretraining import CotMae

        return CotMae

    @classmethod
    def shape(cls, settings: Any) -> dict[str, Any]:
        return {"layers": settings.layers}

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Mlm.loss`; `context` is L_ctx."""
        passages, contexts = (self.masked_loss((o,), 1, batch, [kind]) for o, kind in zip(outputs, ("passages", "contexts"), strict=True))
        return passages + contexts, {"mlm": passages.detach(), "context": contexts.detach()}
