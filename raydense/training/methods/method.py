"""What the loop knows of a method: how its model is loaded, what a batch of it is, and its loss; and what all methods share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from raydense.data.store import PassageStore
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.generator import Generator
from raydense.models.tokens import Tokens
from raydense.training.batches import Part

# The padded texts that the model reads, each a dict of its own, by the names that its forward gives them; and what the loss needs.
Batch = dict[str, Any]
Outputs = tuple[Any, ...]
Metrics = dict[str, Tensor]


class Texts:
    """The texts that the examples speak of: queries by position, passages by row."""

    def __init__(self, queries: pa.Table, store: PassageStore) -> None:
        self._queries = queries["text"].combine_chunks()
        self.store = store

    def queries(self, positions: NDArray[np.int64]) -> list[str]:
        """The texts of the queries at `positions`."""
        return self._queries.take(pa.array(positions)).to_pylist()

    def passages(self, rows: NDArray[np.int64]) -> list[str]:
        """What a model reads of the passages at `rows`."""
        return self.store.passages(rows)


class Objective(ABC):
    """A method. Batches are prepared ahead, in a thread; losses are computed where the model is.

    The model's forward takes the texts of a batch by name and returns a tuple with a tensor for each, a row for each text and
    depending on that text alone: so it can be run piece by piece.
    """

    def __init__(self, settings: Any, model: Any, texts: Any, rank: int, workers: int) -> None:
        self.settings, self.model, self.texts, self.rank, self.workers = settings, model, texts, rank, workers

    @classmethod
    @abstractmethod
    def load(cls, settings: Any, folder: str) -> Any:
        """The model to start from, with the settings' changes; new weights are drawn from torch's random state."""

    @classmethod
    @abstractmethod
    def check(cls, settings: Any, folder: str) -> None:
        """InputError where `load` could not read the folder's files or follow the settings; reads no weights."""

    @classmethod
    def completed(cls, settings: Any) -> Any:
        """The settings with the values that follow the model folder filled in, as the output records them."""
        return settings

    @abstractmethod
    def prepare(self, part: Part) -> Batch:
        """This worker's tensors, on the CPU, of a part of the global batch."""

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """The mean loss over this worker's queries from the model's outputs, and metrics, all scalars.

        Every worker has equally many queries.
        """


def load_model(settings: Any, objective: type[Objective], folder: str) -> Any:
    """`Objective.load`, new weights drawn from the seed."""
    torch.manual_seed(settings.seed)
    return objective.load(settings, folder)


def pad(model: DualEncoder | CrossEncoder | Generator, tokens: Tokens) -> dict[str, Tensor]:
    """Tokens as a padded batch on the CPU."""
    return tokens.pad(model.tokenizer.pad_id)


def known_positives(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of the passages at `rows` is a known positive of which query, by row or by equal text: bool [n, len(rows)]."""
    of_query, of_passage = text_hash[mine.known.values], text_hash[rows]
    return np.logical_or.reduceat(of_query[:, None] == of_passage[None, :], mine.known.offsets[:-1], axis=0)


def accuracy(scores: Tensor, positive: Tensor, mask: Tensor) -> Tensor:
    """The share of queries whose positive has the highest score of those not masked."""
    column, scores = positive.unsqueeze(1), scores.detach()
    highest = scores.masked_fill(mask.scatter(1, column, True), float("-inf")).amax(dim=1)
    return (scores.gather(1, column).squeeze(1) > highest).float().mean()


class _Gather(torch.autograd.Function):
    """The tensors of all workers, one after another; the gradient of each goes back to its worker, summed over workers."""

    @staticmethod
    def forward(context: Any, mine: Tensor) -> Tensor:
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine.contiguous())
        return torch.cat(everyone)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].contiguous()
        dist.all_reduce(summed)
        return summed.chunk(dist.get_world_size())[dist.get_rank()]


def gather(mine: Tensor) -> Tensor:
    """All workers' vectors [workers * n, d] from this worker's [n, d], with their gradients."""
    return _Gather.apply(mine)
