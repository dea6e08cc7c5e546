"""A retriever by the query-centric loss. Its settings cover DPR, ANCE, RocketQA, DuReader-retrieval and both stages of query-as-context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from raydense.settings import FolderOrNone, artifact, setting
from raydense.training.dual_encoder import DualEncoderMethod, teacher_of
from raydense.training.method import Batch, Held, Metrics, Outputs, method
from raydense.training.settings import RefreshedSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from raydense.models.dual_encoder import DualEncoder
    from raydense.training.part import Part
    from raydense.training.texts import Texts


@method("retriever")
class Retriever(DualEncoderMethod):
    """A dual encoder, by the query-centric loss over its hard negatives and, if set, in-batch and cross-batch negatives.

    A known positive of the query, or a passage with the text of one, is never used as its negative (DPR eq. 2, PAIR eq. 3).
    """

    class Settings(DualEncoderMethod.Settings, RefreshedSettings):
        """Train a retriever by the query-centric loss."""

        in_batch: bool = setting(True, "in-batch negatives: other queries' passages are negatives too")
        cross_batch: bool = setting(True, "cross-batch negatives: with in_batch, also the passages of all other workers")
        topics: FolderOrNone = artifact(
            "topics", "what `topics` made of the queries: each batch is of one topic or of few, so that in-batch negatives are harder", None
        )

        @model_validator(mode="after")
        def _fits_batch(self) -> Self:
            if not self.in_batch:
                self._refuse_given(["cross_batch", "topics"], "a training without in_batch")
            elif self.cross_batch:
                self._refuse_no_negatives(self.batch_size // self.accumulation, "batch_size / accumulation")
            else:
                each = "batch_size / accumulation / workers, without cross_batch,"
                self._refuse_no_negatives(self.batch_size // self.accumulation // self.workers, each)
            return self

        def shaping(self) -> dict[str, Any]:
            """As for every stage; also the number of workers, if in-batch negatives come only from a worker's own queries."""
            alone = self.in_batch and not self.cross_batch
            return super().shaping() | ({"workers": self.workers} if alone else {})

    def __init__(self, settings: Any, model: DualEncoder, texts: Texts, rank: int, workers: int) -> None:
        super().__init__(settings, model, texts, rank, workers)
        self.gathers = settings.in_batch and settings.cross_batch and workers > 1

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return bool(settings.in_batch)

    @classmethod
    def held(cls, settings: Any) -> Held:
        """As `Method.held`: each query is compared with each passage, with cross-batch negatives also those of other workers."""
        if not settings.in_batch:
            return super().held(settings)
        texts = cls.texts_of(settings)
        gathered = texts["passages"] * (settings.workers if settings.cross_batch else 1)
        return Held(vectors=sum(texts.values()) + gathered, scores=texts["queries"] * gathered)

    def seen(self, part: Part) -> list[Part]:
        """The slices of a part whose passages this worker's queries are compared with, where negatives are in-batch."""
        return [part.slice_of(r, self.workers) for r in (range(self.workers) if self.gathers else [self.rank])]

    def prepare(self, part: Part) -> Batch:
        """As `Method.prepare`; the passages of a worker are its positives query by query, then its negatives.

        `positive` [n] is the column of each query's first positive. `known` bool [n, passages] marks the query's known positives,
        `out` bool [passages] what no query is compared with, which is padding. `own` int64 [n, positives + negatives] has the columns of
        the query's own list, its positives and then its negatives. Without `in_batch` the passages are those of this list, and the
        lists are in the order of the queries; then `out` is [n, passages]. `teacher` as in `DualEncoderMethod.prepare`, of `own`.
        """
        import numpy as np
        import torch

        from raydense.training.known import known_positives

        mine = part.slice_of(self.rank, self.workers)
        if not self.settings.in_batch:
            return self._lists(mine)
        seen = self.seen(part)
        rows, fillers = np.concatenate([_rows_of(s) for s in seen]), np.concatenate([_fills(s) for s in seen])
        first = self.rank * len(_rows_of(mine)) if self.gathers else 0
        n, m = mine.positives.shape
        columns = first + np.arange(len(_rows_of(mine)))
        own = np.concatenate([columns[: n * m].reshape(n, m), columns[n * m :].reshape(n, -1)], axis=1)
        return {
            **self.tokenized(mine, _rows_of(mine)),
            "positive": torch.from_numpy(own[:, 0].copy()),
            "own": torch.from_numpy(own),
            "known": torch.from_numpy(known_positives(mine, rows, self.texts.store.text_hash)),
            "out": torch.from_numpy(fillers),
            **teacher_of(mine),
        }

    def _lists(self, mine: Part) -> Batch:
        """As `prepare`, of each query with its own list."""
        import numpy as np
        import torch

        from raydense.training.known import known_of_lists

        rows = np.concatenate(_lists_of(mine), axis=1)
        return {
            **self.tokenized(mine, rows.ravel()),
            "positive": torch.zeros(len(mine), dtype=torch.int64),
            "own": torch.arange(rows.shape[1]).repeat(len(rows), 1),
            "known": torch.from_numpy(known_of_lists(mine, rows, self.texts.store.text_hash)),
            "out": torch.from_numpy(np.concatenate(_fillers_of(mine), axis=1)),
            **teacher_of(mine),
        }

    def vectors(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """Vectors of this worker's queries [n, d], and of the passages that they are compared with; never in half precision.

        Those are [passages, d], of all workers, or without `in_batch` each query's own list [n, passages, d].
        """
        from raydense.models.losses import exact
        from raydense.training.gather import gather

        queries, passages = exact(outputs[0]), exact(outputs[1])
        if not self.settings.in_batch:
            return queries, passages.view(len(queries), -1, passages.shape[1])
        return queries, gather(passages) if self.gathers else passages

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; `accuracy` is the share of queries whose positive has the highest score."""
        from raydense.models import losses
        from raydense.training.accuracy import accuracy

        queries, passages = self.vectors(outputs)
        scores, mask = compared(queries, passages), batch["known"] | batch["out"]
        loss = losses.query_centric(scores, batch["positive"], mask, self.temperature)
        return loss, {"accuracy": accuracy(scores, batch["positive"], mask)}


def compared(vectors: Tensor, passages: Tensor) -> Tensor:
    """Scores of vectors [n, d] with the passages of `Retriever.vectors`: with all of them, or each with its own list."""
    return vectors @ passages.T if passages.ndim == 2 else (passages @ vectors.unsqueeze(2)).squeeze(2)


def _lists_of(part: Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of each query's positives [n, m] and negatives [n, k]; missing positives are padded with the query's first."""
    import numpy as np

    return np.where(part.positives < 0, part.positives[:, :1], part.positives), part.negatives


def _fillers_of(part: Part) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of `_lists_of` are padding."""
    import numpy as np

    return part.positives < 0, np.zeros(part.negatives.shape, np.bool_)


def _rows_of(part: Part) -> NDArray[np.int64]:
    """The rows of a slice's passages: all positives, then all negatives."""
    import numpy as np

    return np.concatenate([of.ravel() for of in _lists_of(part)])


def _fills(part: Part) -> NDArray[np.bool_]:
    import numpy as np

    return np.concatenate([of.ravel() for of in _fillers_of(part)])
