"""coCondenser (Gao and Callan 2022; query-as-context): Condenser, and the contrast of each passage and its context with other texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raydense.settings import setting
from raydense.training.method import Batch, Held, Metrics, Outputs, method
from raydense.training.methods.pretraining.condenser import Condenser
from raydense.training.settings import ContextSettings

if TYPE_CHECKING:
    from torch import Tensor


@method("cocondenser")
class CoCondenser(Condenser):
    """L = L_mlm + L_aux + L_co (eq. 7): the [CLS] of a passage and of its context, against all other texts of the batch."""

    adds = False

    class Settings(Condenser.Settings, ContextSettings):
        """Pre-train an encoder by Condenser and the contrast of passages and their contexts."""

        temperature: float = setting(1.0, "tau, scores of the contrastive loss are divided by it", gt=0)

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return True

    @classmethod
    def held(cls, settings: Any) -> Held:
        """As `Method.held`: the [CLS] of each text is compared with those of all workers."""
        spans = sum(cls.texts_of(settings).values())
        gathered = spans * settings.workers
        return Held(vectors=spans + gathered, scores=spans * gathered + spans)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Condenser.loss`; `contrast` is L_co, over the texts of all workers."""
        import torch

        from raydense.models import losses
        from raydense.training.gather import gather

        found, metrics = super().loss(outputs, batch)
        spans, texts = [losses.exact(o[:, 3:]) for o in outputs], batch["text_hash"].chunk(2)
        all_spans, all_texts = (torch.cat([gather(one) for one in of]) for of in (spans, texts))
        n, total = len(spans[0]), len(all_spans) // 2
        place = self.rank * n + torch.arange(n, device=found.device)
        pair = torch.cat([total + place, place])
        left_out = torch.cat(texts).unsqueeze(1) == all_texts
        left_out |= torch.cat(texts[::-1]).unsqueeze(1) == all_texts
        contrast = losses.span_contrastive(torch.cat(spans) @ all_spans.T, pair, left_out, self.settings.temperature)
        return found + contrast, metrics | {"contrast": contrast.detach()}
