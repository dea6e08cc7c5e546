"""The base of methods that train a dual encoder: settings, loading, dev metric, and each query's own list of passages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from raydense.training.method import Batch, Held, Method, Outputs
from raydense.training.settings import MeasuredSettings, NegativesSettings, TrainSettings, VectorSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from raydense.data.store import PassageStore
    from raydense.models.dual_encoder import DualEncoder
    from raydense.training.dev_sets import DevSet
    from raydense.training.part import Part
    from raydense.training.texts import Texts

_CHANGES = ("shared", "pooling", "normalize", "query_prefix", "passage_prefix", "query_length", "passage_length")


def changes(settings: VectorSettings) -> dict[str, Any]:
    """The values of a retriever's folder that the settings override; None leaves a value unchanged."""
    return {name: getattr(settings, name) for name in _CHANGES}


def temperature_of(settings: VectorSettings, normalized: bool) -> float:
    """The temperature in the settings, otherwise the default for the vectors.

    Scores of vectors of length 1 are in [-1, 1]: without a temperature, a softmax over them is nearly flat and its gradient small.
    """
    return settings.temperature or (0.05 if normalized else 1.0)


def completed(settings: Any) -> Any:
    """The settings with the temperature that follows from the model folder."""
    if settings.temperature is not None:
        return settings
    normalized = settings.normalize
    if normalized is None:
        from raydense.models.encoder_config import read_encoder_config
        from raydense.storage import model_place

        normalized = settings.model != "tiny" and read_encoder_config(model_place(settings.model).local()).normalize
    return settings.model_copy(update={"temperature": temperature_of(settings, normalized)})


class DualEncoderMethod(Method):
    """A retriever that learns from each query's own list only: its positive and its hard negatives."""

    models: ClassVar[Mapping[str, str]] = {"": "retriever"}
    model: DualEncoder

    class Settings(TrainSettings, NegativesSettings, MeasuredSettings, VectorSettings):
        """Train a retriever from each query's own list."""

        @model_validator(mode="after")
        def _fits_lists(self) -> Self:
            if self.negatives == 0 and not getattr(self, "in_batch", False):
                raise ValueError(
                    f"objective {self.objective} needs negatives of at least 1{', or in_batch' if hasattr(self, 'in_batch') else ''}"
                )
            return self

    def __init__(self, settings: Any, model: DualEncoder, texts: Texts, rank: int, workers: int) -> None:
        super().__init__(settings, model, texts, rank, workers)
        self.temperature = temperature_of(settings, model.config.normalize)

    @classmethod
    def completed(cls, settings: Any) -> Any:
        return completed(settings)

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return False

    @classmethod
    def texts_of(cls, settings: Any) -> dict[str, int]:
        queries, draws = cls.queries_of(settings), cls.draws(settings)
        return {"queries": queries, "passages": queries * (draws.positives + draws.negatives)}

    @classmethod
    def held(cls, settings: Any) -> Held:
        texts = cls.texts_of(settings)
        return Held(vectors=sum(texts.values()), scores=texts["passages"])

    @classmethod
    def dev_sets(cls, settings: Any, store: PassageStore) -> dict[str, DevSet]:
        from raydense.training.dev_sets import METRIC, read_dev_sets, retriever_set

        return read_dev_sets(settings, store, {METRIC: retriever_set})

    @classmethod
    def load(cls, settings: Any, folder: str) -> DualEncoder:
        from raydense.models.dual_encoder import DualEncoder

        return DualEncoder.load(folder, dropout=settings.dropout, adapter=settings.adapter, **changes(settings))

    @classmethod
    def check(cls, settings: Any, folder: str) -> None:
        from raydense.models.tokenizer import load_tokenizer

        load_tokenizer(folder, **changes(settings))

    @classmethod
    def lengths(cls, model: DualEncoder) -> dict[str, int]:
        return {"queries": model.config.query_length, "passages": model.config.passage_length}

    def prepare(self, part: Part) -> Batch:
        """As `Method.prepare`; passages are ordered by query: its positive, then its negatives.

        `teacher` float32 [n, 1 + negatives]: their teacher scores, if the examples have scores.
        """
        mine = part.slice_of(self.rank, self.workers)
        return self.tokenized(mine, mine.lists.ravel()) | teacher_of(mine)

    def tokenized(self, mine: Part, rows: NDArray[np.int64]) -> Batch:
        """Padded batches of a slice's queries, and of the passages at `rows`."""

        pad_id = self.model.tokenizer.pad_id
        return {
            "queries": self.model.tokenize_queries(self.texts.queries(mine.query)).pad(pad_id),
            "passages": self.model.tokenize_passages(self.texts.passages(rows)).pad(pad_id),
        }

    def list_scores(self, outputs: Outputs) -> Tensor:
        """s(q, p) of each query with the passages of its own list, [n, 1 + negatives]; never in half precision."""
        from raydense.models.losses import exact

        queries, passages = (exact(output) for output in outputs)
        lists = passages.view(len(queries), -1, passages.shape[1])
        return (lists @ queries.unsqueeze(2)).squeeze(2)


def teacher_of(mine: Part) -> Batch:
    """The teacher's scores of a slice's positives and then its negatives, as `teacher` float32 [n, positives + negatives]."""
    import torch

    scores = mine.scores
    return {} if scores is None else {"teacher": torch.from_numpy(scores)}
