"""A generator: the passage is read, its query is to be written (doc2query; query-as-context, section 3.1)."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from raydense.models.generator import Generator, changes, read_generator_config
from raydense.training.batches import Part
from raydense.training.methods.method import Batch, Metrics, Objective, Outputs, pad
from raydense.training.settings import TrainSettings


class GeneratorTraining(Objective):
    """L = -1/|tokens| sum log P(q | p) over the queries of the batch, each with one of its positives, by teacher forcing."""

    model: Generator

    @classmethod
    def load(cls, settings: TrainSettings, folder: str) -> Generator:
        return Generator.load(folder, dropout=settings.dropout, **changes(settings))

    @classmethod
    def check(cls, settings: TrainSettings, folder: str) -> None:
        read_generator_config(folder, **changes(settings))

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; row i of both batches is a pair."""
        mine = part.slice_of(self.rank, self.workers)
        return {
            "queries": pad(self.model, self.model.tokenize_queries(self.texts.queries(mine.query))),
            "passages": pad(self.model, self.model.tokenize_passages(self.texts.passages(mine.positives[:, 0]))),
        }

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`; the metric `surprise` is the mean of -log P(q | p) over queries."""
        surprise, tokens = outputs
        count = tokens.detach().sum()
        if self.workers > 1:
            dist.all_reduce(count)  # the mean over workers is then that over all tokens, however they are shared out
        return surprise.sum() / (count / self.workers), {"surprise": surprise.detach().mean()}
