"""A re-ranker by the listwise or the pointwise loss, as in RocketQA, DuReader-retrieval, and the first stage of RocketQAv2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from raydense.training.method import Batch, Held, Method, Metrics, Outputs, method
from raydense.training.settings import MeasuredSettings, NegativesSettings, PairSettings, TrainSettings

if TYPE_CHECKING:
    from torch import Tensor

    from raydense.data.store import PassageStore
    from raydense.models.cross_encoder import CrossEncoder
    from raydense.training.dev_sets import DevSet
    from raydense.training.part import Part


@method("reranker")
class Reranker(Method):
    """A cross-encoder over a positive and its hard negatives."""

    models: ClassVar[Mapping[str, str]] = {"": "re-ranker"}
    model: CrossEncoder

    class Settings(TrainSettings, NegativesSettings, MeasuredSettings, PairSettings):
        """Train a re-ranker, a cross-encoder."""

        @model_validator(mode="after")
        def _fits_reranker(self) -> Self:
            if self.negatives == 0:
                raise ValueError("a reranker needs negatives of at least 1")
            if self.dev:
                self.dev.refuse_recall("objective reranker")
            return self

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return False

    @classmethod
    def texts_of(cls, settings: Any) -> dict[str, int]:
        return {"pairs": cls.queries_of(settings) * (1 + settings.negatives)}

    @classmethod
    def held(cls, settings: Any) -> Held:
        return Held(scores=cls.texts_of(settings)["pairs"])

    @classmethod
    def dev_sets(cls, settings: Any, store: PassageStore) -> dict[str, DevSet]:
        from raydense.errors import InputError
        from raydense.training.dev_sets import METRIC, read_dev_sets, reranker_set

        if settings.dev and not settings.dev.run:
            raise InputError("a re-ranker's dev metric needs candidates to order", "dev.run", "give --dev.run, or leave dev out")
        return read_dev_sets(settings, store, {METRIC: reranker_set})

    @classmethod
    def load(cls, settings: Any, folder: str) -> CrossEncoder:
        from raydense.models.cross_encoder import CrossEncoder

        return CrossEncoder.load(folder, length=settings.pair_length, dropout=settings.dropout)

    @classmethod
    def check(cls, settings: Any, folder: str) -> None:
        from raydense.models.cross_encoder import load_pair_tokenizer

        load_pair_tokenizer(folder, settings.pair_length)

    @classmethod
    def lengths(cls, model: CrossEncoder) -> dict[str, int]:
        return {"pairs": model.length}

    def prepare(self, part: Part) -> Batch:
        """As `Method.prepare`; each query's list is its positive, then its negatives. `relevant` is bool [n, list]."""
        import numpy as np
        import torch

        from raydense.training.known import known_of_lists

        mine = part.slice_of(self.rank, self.workers)
        rows = mine.lists
        queries = np.repeat(np.array(self.texts.queries(mine.query), object), rows.shape[1]).tolist()
        pairs = self.model.tokenize_pairs(queries, self.texts.passages(rows.ravel()))
        relevant = known_of_lists(mine, rows, self.texts.store.text_hash)
        return {"pairs": pairs.pad(self.model.tokenizer.pad_id), "relevant": torch.from_numpy(relevant)}

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; other known positives are left out of a list, and count as positives pointwise."""
        import torch

        from raydense.models import losses
        from raydense.training.accuracy import accuracy

        scores = losses.exact(outputs[0]).view(batch["relevant"].shape)
        loss = supervised(scores, batch["relevant"], self.settings.loss == "pointwise")
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        return loss, {"accuracy": accuracy(scores, first, batch["relevant"])}


def of_list(relevant: Tensor) -> Tensor:
    """The passages that are in the list: the first, and all that are not known positives. bool [n, m]."""
    valid = ~relevant
    valid[:, 0] = True
    return valid


def supervised(scores: Tensor, relevant: Tensor, pointwise: bool) -> Tensor:
    """The loss of a re-ranker's scores [n, m], whose first column is the positive."""
    from raydense.models import losses

    return losses.pointwise(scores, relevant) if pointwise else losses.listwise(scores, of_list(relevant))
