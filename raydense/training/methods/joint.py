"""RocketQAv2: retriever and re-ranker trained together by dynamic listwise distillation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydense.models import losses
from raydense.models.cross_encoder import refuse_untrained
from raydense.models.dual_encoder import DualEncoder
from raydense.models.joint import JointModel
from raydense.training.batches import Part
from raydense.training.methods.method import Batch, Metrics, Objective, Outputs, accuracy, known_positives, pad
from raydense.training.methods.reranker import Reranker, of_list, supervised
from raydense.training.methods.retriever import Retriever, changes, completed, temperature_of
from raydense.training.settings import TrainSettings


class JointTraining(Objective):
    """L = L_KL + L_sup (RocketQAv2 eq. 6): the retriever learns from the re-ranker's shares of each list, and, where the teacher
    is dynamic, the re-ranker from the retriever's and from the labels.

    A list is a positive and its hard negatives, with `in_batch` the other queries' positives too. A static teacher is frozen,
    and L_KL stands alone.
    """

    model: JointModel

    @classmethod
    def load(cls, settings: TrainSettings, folder: str) -> JointModel:
        assert settings.reranker is not None
        retriever = DualEncoder.load(folder, **changes(settings))
        return JointModel(retriever, Reranker.load(settings, settings.reranker), frozen=settings.teacher == "static")

    @classmethod
    def check(cls, settings: TrainSettings, folder: str) -> None:
        assert settings.reranker is not None
        Retriever.check(settings, folder)
        Reranker.check(settings, settings.reranker)
        if settings.teacher == "static":
            refuse_untrained(settings.reranker)

    @classmethod
    def completed(cls, settings: TrainSettings) -> TrainSettings:
        return completed(settings)

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; a passage in several lists is encoded once.

        `place` int64 [n, m] says which of the passages each place of a list holds; `relevant` bool [n, m], which is a known positive.
        """
        mine = part.slice_of(self.rank, self.workers)
        rows = np.concatenate([mine.positives[:, :1], mine.negatives, self._others(part)], axis=1)
        known = known_positives(mine, rows.ravel(), self.texts.store.text_hash).reshape(len(mine), *rows.shape)
        passages, place = np.unique(rows, return_inverse=True)
        texts, queries = self.texts.passages(passages), self.texts.queries(mine.query)
        pairs = self.model.reranker.tokenize_pairs(
            np.repeat(np.array(queries, object), rows.shape[1]).tolist(), np.array(texts, object)[place.ravel()].tolist()
        )
        retriever = self.model.retriever
        return {
            "queries": pad(retriever, retriever.tokenize_queries(queries)),
            "passages": pad(retriever, retriever.tokenize_passages(texts)),
            "pairs": pad(self.model.reranker, pairs),
            "place": torch.from_numpy(place.reshape(rows.shape)),
            "relevant": torch.from_numpy(known[np.arange(len(mine)), np.arange(len(mine))]),
        }

    def _others(self, part: Part) -> NDArray[np.int64]:
        """The positives of the part's other queries, of every worker's: int64 [n, queries - 1], or [n, 0] without in-batch negatives."""
        share, all_of = len(part) // self.workers, part.positives[:, 0]
        mine = np.arange(self.rank * share, (self.rank + 1) * share)
        if not self.settings.in_batch:
            return np.zeros((share, 0), np.int64)
        others = np.arange(len(part))[None, :] != mine[:, None]
        return np.broadcast_to(all_of, others.shape)[others].reshape(share, len(part) - 1)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`; the metrics tell L_KL and L_sup apart, and how often each model has the positive first."""
        queries, passages, scores = (losses.exact(output) for output in outputs)
        relevant: Tensor = batch["relevant"]
        retriever = torch.einsum("nd,nmd->nm", queries, passages[batch["place"]]) / temperature_of(
            self.settings, self.model.retriever.config.normalize
        )
        reranker = scores.view(relevant.shape)
        distilled = losses.listwise_distillation(retriever, reranker, of_list(relevant), self.settings.direction)
        first = torch.zeros(len(relevant), dtype=torch.int64, device=relevant.device)
        metrics = {
            "distillation": distilled.detach(),
            "accuracy": accuracy(retriever, first, relevant),
            "reranker_accuracy": accuracy(reranker, first, relevant),
        }
        if self.settings.teacher == "static":
            return distilled, metrics
        labelled = supervised(reranker, relevant, self.settings.loss == "pointwise")
        return distilled + labelled, metrics | {"supervised": labelled.detach()}
