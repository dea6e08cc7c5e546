"""The base class of training methods: settings, the texts of a step, model, loss, dev metrics, and what is saved.

The loop, the memory estimate and `plan` use this interface, and have no branch on a method's name. Importing a method imports no torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from raydense.training.loop_settings import LoopSettings
from raydense.training.registry import method
from raydense.training.settings import NegativesSettings, dev_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from raydense.data.store import PassageStore
    from raydense.training.dev_sets import DevSet
    from raydense.training.examples import Examples
    from raydense.training.part import Part
    from raydense.training.ragged import Floats, Ragged

__all__ = ["Batch", "Draws", "Held", "Method", "Metrics", "Outputs", "load_model", "method", "method_of"]

# The padded texts for the model, a dict for each parameter of its forward, and further tensors for the loss.
Batch = dict[str, Any]
Outputs = tuple[Any, ...]
Metrics = dict[str, "Tensor"]


@dataclass(frozen=True)
class Draws:
    """What each step takes from an example: a number of positives, drawn at random or the first ones, and of negatives, drawn at random."""

    positives: int = 1
    negatives: int = 0
    random_positives: bool = True


@dataclass(frozen=True)
class Held:
    """How many vectors and scores, all float32, the loss of a part of a step holds at once on one worker."""

    vectors: int = 0
    scores: int = 0


class Method(ABC):
    """A training method.

    Batches are prepared ahead, in a thread; losses are computed on the model's device. The model's forward takes the texts of a batch
    by name and returns a tuple with a tensor for each; a row depends only on its text, so that forward can run piece by piece.

    `Settings` is the method's own settings class. `needs_scores`: the examples must have a teacher's scores; see `Part`.
    `adds`: the loss of a method that does not couple queries is no mean but a sum over queries, divided by totals of the part, which are
    tensors without dimension in the batch; so are the metrics. `models`: what each of `parts` is, a retriever, re-ranker, generator or
    encoder, so that a recipe can refuse a stage that runs another; what is not named here is not checked.
    """

    name: ClassVar[str] = ""
    Settings: ClassVar[type[LoopSettings]]
    artifact: ClassVar[str] = "model"
    models: ClassVar[Mapping[str, str]] = {}
    needs_scores: ClassVar[bool] = False
    adds: ClassVar[bool] = False

    def __init__(self, settings: Any, model: Any, texts: Any, rank: int, workers: int) -> None:
        self.settings, self.model, self.texts, self.rank, self.workers = settings, model, texts, rank, workers

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Settings" not in cls.__dict__ and hasattr(cls, "Settings"):
            own = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Settings", "__doc__": cls.__doc__}
            cls.Settings = type(cls.Settings)("Settings", (cls.Settings,), own)  # type: ignore[misc]
        if hasattr(cls, "Settings"):
            cls.Settings.trains = cls

    # from the settings only: for `plan`, the memory estimate and the command line; no model is loaded

    @classmethod
    def draws(cls, settings: Any) -> Draws:
        """What each step takes from an example."""
        negatives = settings.negatives if isinstance(settings, NegativesSettings) else 0
        return Draws(negatives=negatives, random_positives=settings.draw_positives)

    @staticmethod
    def queries_of(settings: Any) -> int:
        """How many queries (in pre-training, passages) a worker has in a part of a step."""
        return settings.batch_size // settings.accumulation // settings.workers

    @classmethod
    def couples(cls, settings: Any) -> bool:
        """Whether the loss compares texts of different queries: a part of a step then runs in pieces by gradient caching.

        If it does not, the loss is a mean over queries, every tensor of a batch has equally many rows for each query, in the order of
        the queries, and a part runs in pieces by plain accumulation, which runs forward once.
        """
        return True

    @classmethod
    @abstractmethod
    def texts_of(cls, settings: Any) -> dict[str, int]:
        """How many texts of each kind a worker has in a part of a step, at most; a passage in several lists counts once."""

    @classmethod
    @abstractmethod
    def held(cls, settings: Any) -> Held:
        """How many vectors and scores the loss holds at once."""

    @classmethod
    def masked(cls, settings: Any) -> dict[str, float]:
        """The share of the tokens of each kind of texts that is hidden from the model."""
        return {}

    @classmethod
    def without_gradient(cls, settings: Any) -> set[str]:
        """The kinds of texts that only a frozen model reads, which draws nothing at random: gradient caching runs them once."""
        return set()

    @classmethod
    def starts_from(cls, settings: Any) -> list[str]:
        """The model folders that training starts from."""
        return [settings.model]

    @classmethod
    def check_examples(cls, settings: Any) -> None:
        """InputError where examples that are there lack what it learns from; reads none of them."""
        if cls.needs_scores:
            from raydense.training.examples import require_scores

            require_scores(settings)

    @classmethod
    def dev_sets(cls, settings: Any, store: PassageStore) -> dict[str, DevSet]:
        """The dev sets to measure during training, by the names of the metrics; the first decides which weights are best."""
        return {}

    # of the data and the model

    @classmethod
    def read(cls, settings: Any, store: PassageStore, log: bool = False) -> tuple[Examples, Any]:
        """The examples and their texts; with `log`, logs how many are left out."""
        from raydense.training.examples import read_training_data

        return read_training_data(settings, store, cls.draws(settings).negatives, cls.needs_scores, log)

    @classmethod
    def log_weights(cls, settings: Any, positive: Floats, negatives: Ragged) -> NDArray[np.floating] | None:
        """The logarithm of each negative's weight in the random draw of a step, up to a constant for each query; None: all alike.

        One for each of `negatives.values` [v], those of a step's queries: `negatives.owner` is the number of its query, `negatives.scores`
        are the teacher's. `positive` float32 [n] is the score of each query's drawn positive, NaN for none.
        """
        return None

    @classmethod
    def make_tiny(cls, texts: Iterable[str], folder: Path | str, seed: int) -> None:
        """Write a small new model, with a vocabulary made from the texts, for `model: tiny`."""
        from raydense.models.tiny import make_tiny_encoder

        make_tiny_encoder(texts, folder, seed)

    @classmethod
    @abstractmethod
    def load(cls, settings: Any, folder: str) -> Any:
        """The model to start from, with the settings' changes; new weights are drawn from torch's random state."""

    @classmethod
    @abstractmethod
    def check(cls, settings: Any, folder: str) -> None:
        """InputError if `load` could not read the folder's files or apply the settings; reads no weights."""

    @classmethod
    def completed(cls, settings: Any) -> Any:
        """The settings, completed by values that follow from the model folder, as the output records them."""
        return settings

    @classmethod
    @abstractmethod
    def lengths(cls, model: Any) -> dict[str, int]:
        """The most tokens of a text of each kind, special tokens included."""

    @classmethod
    def parts(cls, model: Any) -> Mapping[str, Any]:
        """The models to save, by sub-folder; "" is the artifact's own folder."""
        return {"": model}

    # of a step

    @abstractmethod
    def prepare(self, part: Part) -> Batch:
        """This worker's tensors, on the CPU, of a part of the global batch."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """The mean loss over this worker's queries from the model's outputs, and metrics, all scalars.

        Every worker has equally many queries.
        """


def method_of(settings: LoopSettings) -> type[Method]:
    """The method that the settings belong to."""
    assert settings.trains is not None, f"{type(settings).__name__} is of no method"
    return settings.trains


def dev_interval(settings: LoopSettings, steps: int) -> int:
    """Steps between dev measurements in a training of so many steps; by default there are ten."""
    dev = dev_of(settings)
    return (dev.every if dev else 0) or max(1, math.ceil(steps / 10))


def load_model(settings: LoopSettings, folder: str) -> Any:
    """The model that a training starts from, as `Method.load`; new weights are drawn from the seed."""
    import torch

    torch.manual_seed(settings.seed)
    return method_of(settings).load(settings, folder)
