"""Pre-training: masked tokens alone, and with Condenser's head, with coCondenser's contrast, or with CoT-MAE's decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from raydense.data.store import hash_strings
from raydense.models import losses
from raydense.models.pretraining import Condenser, CotMae, PretrainModel
from raydense.models.tokenizer import load_tokenizer
from raydense.training.batches import Part
from raydense.training.contexts import Contexts
from raydense.training.methods.method import Batch, Metrics, Objective, Outputs, gather, pad
from raydense.training.settings import PretrainSettings


class Pretraining(Objective):
    """L = L_mlm: -log p of the masked tokens (query-as-context eq. 4); what the methods below add to."""

    model: PretrainModel
    settings: PretrainSettings
    texts: Contexts
    kind: type[PretrainModel] = PretrainModel

    @classmethod
    def load(cls, settings: PretrainSettings, folder: str) -> PretrainModel:
        return cls.kind.load(folder, passage_length=settings.passage_length, dropout=settings.dropout, **cls.shape(settings))

    @classmethod
    def shape(cls, settings: PretrainSettings) -> dict[str, Any]:
        """What the model's own class takes."""
        return {}

    @classmethod
    def check(cls, settings: PretrainSettings, folder: str) -> None:
        load_tokenizer(folder, passage_length=settings.passage_length)

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; masks and contexts are drawn for the whole part, and so are the same for any number of workers."""
        share = len(part) // self.workers
        mine = slice(self.rank * share, (self.rank + 1) * share)
        rng = np.random.default_rng(part.lot)
        passages = self.texts.passages(part.query[mine])
        batch: Batch = {"passages": self._masked(passages, self.settings.mask, rng.random(self._draws(part)), mine)}
        if self.settings.context is not None:
            contexts = self.texts.draw(part.query[mine], rng.random((len(part), 2))[mine])
            batch["contexts"] = self._masked(contexts, self.settings.context_mask, rng.random(self._draws(part)), mine)
            batch["text_hash"] = torch.from_numpy(hash_strings(pa.array(passages + contexts)).view(np.int64))
        return batch

    def _draws(self, part: Part) -> tuple[int, int]:
        return len(part), self.settings.passage_length

    def _masked(self, texts: list[str], share: float | None, draws: NDArray[np.float64], mine: slice) -> dict[str, Tensor]:
        assert share is not None
        batch = pad(self.model.retriever, self.model.retriever.tokenize_passages(texts))
        return self.model.mask(batch, share, torch.from_numpy(draws[mine]))

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`: the mean over everyone's masked tokens."""
        found = self.masked(outputs, 1)
        return found, {"mlm": found.detach()}

    def masked(self, outputs: Outputs, column: int) -> Tensor:
        """The mean of -log p of the masked tokens, by the outputs' `column`, over those of all kinds of texts."""
        of_all = torch.cat(outputs)
        return losses.masked_tokens(of_all[:, column], self._everyones(of_all[:, 0].detach().sum()))

    def _everyones(self, count: Tensor) -> Tensor:
        """Everyone's masked tokens over the number of workers: gradients are averaged over these."""
        if self.workers > 1:
            dist.all_reduce(count)
        return count / self.workers


class CondenserTraining(Pretraining):
    """L = L_mlm + L_aux: the head tells the same tokens (eq. 6), with [CLS] alone from the late layers."""

    kind = Condenser

    @classmethod
    def shape(cls, settings: PretrainSettings) -> dict[str, Any]:
        return {"layers": settings.layers, "skip_from": settings.skip_from}

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Pretraining.loss`; with L_aux told apart."""
        found, again = self.masked(outputs, 1), self.masked(outputs, 2)
        return found + again, {"mlm": found.detach(), "aux": again.detach()}


class CoCondenserTraining(CondenserTraining):
    """L = L_mlm + L_aux + L_co (eq. 7): the [CLS] of a passage and of its context, against all other texts of the batch."""

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `CondenserTraining.loss`; with L_co told apart, over everyone's texts."""
        found, metrics = super().loss(outputs, batch)
        spans, texts = [losses.exact(o[:, 3:]) for o in outputs], batch["text_hash"].chunk(2)
        everyone, all_texts = (torch.cat([gather(one) if self.workers > 1 else one for one in of]) for of in (spans, texts))
        n, total = len(spans[0]), len(everyone) // 2
        place = self.rank * n + torch.arange(n, device=found.device)
        pair = torch.cat([total + place, place])
        left_out = torch.cat(texts).unsqueeze(1) == all_texts
        left_out |= torch.cat(texts[::-1]).unsqueeze(1) == all_texts
        contrast = losses.span_contrastive(torch.cat(spans) @ everyone.T, pair, left_out, self.settings.temperature)
        return found + contrast, metrics | {"contrast": contrast.detach()}


class CotMaeTraining(Pretraining):
    """L = L_mlm + L_ctx (eq. 11): a decoder tells the masked tokens of the context from the passage's [CLS]."""

    kind = CotMae

    @classmethod
    def shape(cls, settings: PretrainSettings) -> dict[str, Any]:
        return {"layers": settings.layers}

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Pretraining.loss`; with L_ctx told apart."""
        passages, contexts = (self.masked((o,), 1) for o in outputs)
        return passages + contexts, {"mlm": passages.detach(), "context": contexts.detach()}
