"""What is trained: an objective turns a part of a step into tensors, and the model's outputs into a loss and metrics.

The loop knows nothing else of it. Batches are prepared ahead, in a thread; losses are computed where the model is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from raydense import losses
from raydense.data.store import PassageStore
from raydense.models.cross_encoder import CrossEncoder, load_pair_tokenizer
from raydense.models.dual_encoder import DualEncoder
from raydense.models.tokenizer import load_tokenizer
from raydense.models.tokens import Tokens
from raydense.settings import TrainSettings
from raydense.training.batches import Part

Batch = dict[str, Any]
Forward = Callable[..., Any]


class Objective(Protocol):
    """What the loop knows of a method."""

    def prepare(self, part: Part) -> Batch:
        """This worker's tensors, on the CPU, of a part of the global batch."""

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss over this worker's queries, and metrics, all scalars; every worker has equally many queries."""


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


def load_model(settings: TrainSettings, folder: str) -> DualEncoder | CrossEncoder:
    """The model to start from, with the settings' changes; new weights are drawn from the seed."""
    torch.manual_seed(settings.seed)
    if settings.objective == "reranker":
        return CrossEncoder.load(folder, length=settings.passage_length, dropout=settings.dropout)
    return DualEncoder.load(folder, dropout=settings.dropout, **_changes(settings))


def check_model(settings: TrainSettings, folder: str) -> None:
    """InputError where `load_model` could not read the folder's files or follow the settings; reads no weights."""
    if settings.objective == "reranker":
        load_pair_tokenizer(folder, settings.passage_length)
    else:
        load_tokenizer(folder, **_changes(settings))


def _changes(settings: TrainSettings) -> dict[str, Any]:
    names = ("pooling", "normalize", "query_prefix", "passage_prefix", "query_length", "passage_length")
    return {"shared": None if settings.shared else False, **{name: getattr(settings, name) for name in names}}


def make_objective(settings: TrainSettings, model: nn.Module, texts: Texts, rank: int, workers: int) -> Objective:
    """The objective that the settings name."""
    if isinstance(model, DualEncoder):
        return Retriever(settings, model, texts, rank, workers)
    assert isinstance(model, CrossEncoder)
    return Reranker(settings, model, texts, rank, workers)


class Retriever:
    """A dual encoder, by the query-centric loss over own hard negatives and, as asked, in-batch and cross-batch passages.

    A passage that is a known positive of the query, or has the text of one, is never its negative (methods.md, loss 1).
    """

    def __init__(self, settings: TrainSettings, model: DualEncoder, texts: Texts, rank: int, workers: int) -> None:
        self.settings, self.model, self.texts, self.rank, self.workers = settings, model, texts, rank, workers
        self._gathers = settings.in_batch and settings.cross_batch and workers > 1

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; the passages of a worker are its positives, then its negatives query by query."""
        slices = [part.slice_of(r, self.workers) for r in range(self.workers)]
        mine = slices[self.rank]
        seen = slices if self._gathers else [mine]
        rows = np.concatenate([_passages_of(s) for s in seen])
        first = self.rank * len(_passages_of(mine)) if self._gathers else 0
        positive = first + np.arange(len(mine))
        return {
            "queries": pad(self.model, self.model.tokenize_queries(self.texts.queries(mine.query))),
            "passages": pad(self.model, self.model.tokenize_passages(self.texts.passages(_passages_of(mine)))),
            "positive": torch.from_numpy(positive),
            "mask": torch.from_numpy(self._mask(mine, rows, first)),
        }

    def _mask(self, mine: Part, rows: NDArray[np.int64], first: int) -> NDArray[np.bool_]:
        """Which passages are no negative of which query: bool [n, passages]."""
        mask = known_positives(mine, rows, self.texts.store.text_hash)
        if not self.settings.in_batch:
            n, k = mine.negatives.shape
            own = np.zeros_like(mask)
            own[np.arange(n), first + np.arange(n)] = True
            own[np.repeat(np.arange(n), k), first + n + np.arange(n * k)] = True
            mask |= ~own
        return mask

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective.loss`; `accuracy` is the share of queries whose positive has the highest score."""
        queries, passages = forward(queries=batch["queries"], passages=batch["passages"])
        passages = passages.float()
        if self._gathers:
            passages = gather(passages)
        scores = queries.float() @ passages.T
        loss = losses.query_centric(scores, batch["positive"], batch["mask"], self.settings.temperature)
        return loss, {"accuracy": _accuracy(scores.detach(), batch["positive"], batch["mask"])}


class Reranker:
    """A cross-encoder over a positive and its hard negatives: the listwise or the pointwise loss (methods.md, losses 4 and 9)."""

    def __init__(self, settings: TrainSettings, model: CrossEncoder, texts: Texts, rank: int, workers: int) -> None:
        self.settings, self.model, self.texts, self.rank, self.workers = settings, model, texts, rank, workers

    def prepare(self, part: Part) -> Batch:
        """As `Objective.prepare`; each query's list is its positive, then its negatives."""
        mine = part.slice_of(self.rank, self.workers)
        rows = np.concatenate([mine.positive[:, None], mine.negatives], axis=1)
        known = known_positives(mine, rows.ravel(), self.texts.store.text_hash).reshape(len(mine), *rows.shape)
        own = known[np.arange(len(mine)), np.arange(len(mine))]
        queries = np.repeat(np.array(self.texts.queries(mine.query), object), rows.shape[1]).tolist()
        pairs = self.model.tokenize_pairs(queries, self.texts.passages(rows.ravel()))
        return {"pairs": pad(self.model, pairs), "relevant": torch.from_numpy(own)}

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """As `Objective.loss`; other known positives are left out of a list, and count as positives pointwise."""
        relevant: Tensor = batch["relevant"]
        scores = forward(batch=batch["pairs"]).float().view(relevant.shape)
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        if self.settings.loss == "pointwise":
            loss = losses.pointwise(scores, relevant)
        else:
            valid = ~relevant
            valid[:, 0] = True
            loss = losses.listwise(scores, valid)
        return loss, {"accuracy": _accuracy(scores.detach(), first, relevant)}


def pad(model: DualEncoder | CrossEncoder, tokens: Tokens) -> dict[str, Tensor]:
    """Tokens as a padded batch on the CPU."""
    return tokens.pad(model.tokenizer.pad_id)


def known_positives(mine: Part, rows: NDArray[np.int64], text_hash: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of the passages at `rows` is a known positive of which query, by row or by equal text: bool [n, len(rows)]."""
    of_query, of_passage = text_hash[mine.known.values], text_hash[rows]
    return np.logical_or.reduceat(of_query[:, None] == of_passage[None, :], mine.known.offsets[:-1], axis=0)


def _passages_of(part: Part) -> NDArray[np.int64]:
    return np.concatenate([part.positive, part.negatives.ravel()])


def _accuracy(scores: Tensor, positive: Tensor, mask: Tensor) -> Tensor:
    column = positive.unsqueeze(1)
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
