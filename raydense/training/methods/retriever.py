"""A retriever by the query-centric loss: DPR, ANCE, RocketQA, DuReader-retrieval and both stages of query-as-context are its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydense.models import losses
from raydense.models.dual_encoder import DualEncoder
from raydense.models.encoder_config import read_encoder_config
from raydense.models.tokenizer import load_tokenizer
from raydense.storage import Place
from raydense.training.batches import Part
from raydense.training.methods.method import Batch, Metrics, Objective, Outputs, Texts, accuracy, gather, known_positives, pad
from raydense.training.settings import TrainSettings

_CHANGES = ("pooling", "normalize", "query_prefix", "passage_prefix", "query_length", "passage_length")


def changes(settings: TrainSettings) -> dict[str, Any]:
    """What the settings change of a retriever's folder; None leaves it as it is, as `shared` does where nobody asked for it."""
    asked = settings.objective == "pair" or "shared" in settings.model_fields_set
    return {"shared": settings.shared if asked else None, **{name: getattr(settings, name) for name in _CHANGES}}


def temperature_of(settings: TrainSettings, normalized: bool) -> float:
    """The temperature that the settings give, else the one that suits the vectors.

    Scores of vectors of length 1 lie in [-1, 1]: undivided, a softmax over them is nearly flat and teaches nearly nothing.
    """
    return settings.temperature or (0.05 if normalized else 1.0)


def completed(settings: TrainSettings) -> TrainSettings:
    """The settings with the temperature that follows the model folder."""
    if settings.temperature is not None:
        return settings
    normalized = settings.normalize
    if normalized is None:
        normalized = settings.model != "tiny" and read_encoder_config(Place.of(settings.model).local()).normalize
    return settings.model_copy(update={"temperature": temperature_of(settings, normalized)})


class Retriever(Objective):
    """A dual encoder, by the query-centric loss over own hard negatives and, as asked, in-batch and cross-batch passages.

    A passage that is a known positive of the query, or has the text of one, is never its negative (DPR eq. 2, PAIR eq. 3).
    """

    model: DualEncoder

    def __init__(self, settings: TrainSettings, model: DualEncoder, texts: Texts, rank: int, workers: int) -> None:
        super().__init__(settings, model, texts, rank, workers)
        self.temperature = temperature_of(settings, model.config.normalize)
        self._gathers = settings.in_batch and settings.cross_batch and workers > 1

    @classmethod
    def load(cls, settings: TrainSettings, folder: str) -> DualEncoder:
        return DualEncoder.load(folder, dropout=settings.dropout, **changes(settings))

    @classmethod
    def check(cls, settings: TrainSettings, folder: str) -> None:
        load_tokenizer(folder, **changes(settings))

    @classmethod
    def completed(cls, settings: TrainSettings) -> TrainSettings:
        return completed(settings)

    def seen(self, part: Part) -> list[Part]:
        """The slices of a part whose passages this worker's queries are compared with."""
        return [part.slice_of(r, self.workers) for r in (range(self.workers) if self._gathers else [self.rank])]

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; the passages of a worker are its positives query by query, then its negatives.

        `positive` [n] is the column of each query's first positive; `known` and `out` are bool [n, passages]: a known positive of
        the query; not compared with it, since it fills up or is another's where `in_batch` is off.
        """
        mine, seen = part.slice_of(self.rank, self.workers), self.seen(part)
        rows = np.concatenate([_rows_of(s) for s in seen])
        first = self.rank * len(_rows_of(mine)) if self._gathers else 0
        n, m = mine.positives.shape
        return {
            "queries": pad(self.model, self.model.tokenize_queries(self.texts.queries(mine.query))),
            "passages": pad(self.model, self.model.tokenize_passages(self.texts.passages(_rows_of(mine)))),
            "positive": torch.from_numpy(first + m * np.arange(n)),
            "known": torch.from_numpy(known_positives(mine, rows, self.texts.store.text_hash)),
            "out": torch.from_numpy(self._out(mine, seen, first)),
        }

    def _out(self, mine: Part, seen: list[Part], first: int) -> NDArray[np.bool_]:
        fillers = np.concatenate([_fills(s) for s in seen])
        out = np.repeat(fillers[None, :], len(mine), axis=0)
        if not self.settings.in_batch:
            (n, m), k = mine.positives.shape, mine.negatives.shape[1]
            owner = np.concatenate([np.repeat(np.arange(n), m), np.repeat(np.arange(n), k)])
            out |= owner[None, :] != np.arange(n)[:, None]
        return out

    def vectors(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """Vectors of this worker's queries, and of all passages that they are compared with; never in half precision."""
        queries, passages = losses.exact(outputs[0]), losses.exact(outputs[1])
        return queries, gather(passages) if self._gathers else passages

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Objective.loss`; `accuracy` is the share of queries whose positive has the highest score."""
        queries, passages = self.vectors(outputs)
        scores, mask = queries @ passages.T, batch["known"] | batch["out"]
        loss = losses.query_centric(scores, batch["positive"], mask, self.temperature)
        return loss, {"accuracy": accuracy(scores, batch["positive"], mask)}


def _rows_of(part: Part) -> NDArray[np.int64]:
    """The rows of a slice's passages; a place without a positive is filled with the query's first."""
    positives = np.where(part.positives < 0, part.positives[:, :1], part.positives)
    return np.concatenate([positives.ravel(), part.negatives.ravel()])


def _fills(part: Part) -> NDArray[np.bool_]:
    return np.concatenate([(part.positives < 0).ravel(), np.zeros(part.negatives.size, dtype=bool)])
