"""A re-ranker alone, by the listwise or the pointwise loss: that of RocketQA, DuReader-retrieval, and RocketQAv2's start."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raydense.models import losses
from raydense.models.cross_encoder import CrossEncoder, load_pair_tokenizer
from raydense.training.batches import Part
from raydense.training.methods.method import Batch, Metrics, Objective, Outputs, accuracy, known_positives, pad
from raydense.training.settings import TrainSettings


class Reranker(Objective):
    """A cross-encoder over a positive and its hard negatives."""

    model: CrossEncoder

    @classmethod
    def load(cls, settings: TrainSettings, folder: str) -> CrossEncoder:
        return CrossEncoder.load(folder, length=settings.pair_length, dropout=settings.dropout)

    @classmethod
    def check(cls, settings: TrainSettings, folder: str) -> None:
        load_pair_tokenizer(folder, settings.pair_length)

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; each query's list is its positive, then its negatives. `relevant` is bool [n, list]."""
        mine = part.slice_of(self.rank, self.workers)
        rows = np.concatenate([mine.positives[:, :1], mine.negatives], axis=1)
        known = known_positives(mine, rows.ravel(), self.texts.store.text_hash).reshape(len(mine), *rows.shape)
        queries = np.repeat(np.array(self.texts.queries(mine.query), object), rows.shape[1]).tolist()
        pairs = self.model.tokenize_pairs(queries, self.texts.passages(rows.ravel()))
        own = known[np.arange(len(mine)), np.arange(len(mine))]
        return {"pairs": pad(self.model, pairs), "relevant": torch.from_numpy(own)}

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`; other known positives are left out of a list, and count as positives pointwise."""
        scores = losses.exact(outputs[0]).view(batch["relevant"].shape)
        loss = supervised(scores, batch["relevant"], self.settings.loss == "pointwise")
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        return loss, {"accuracy": accuracy(scores, first, batch["relevant"])}


def of_list(relevant: Tensor) -> Tensor:
    """Which passages stand in the list: the first, and all that are no known positive. bool [n, m]."""
    valid = ~relevant
    valid[:, 0] = True
    return valid


def supervised(scores: Tensor, relevant: Tensor, pointwise: bool) -> Tensor:
    """The loss of a re-ranker's scores [n, m], whose first column is the positive."""
    return losses.pointwise(scores, relevant) if pointwise else losses.listwise(scores, of_list(relevant))
