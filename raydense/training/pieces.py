"""How a part of a step is cut into pieces: which rows each has. Done on the CPU, ahead of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from raydense.models.masking import masked_places
from raydense.training.engine import shards_weights
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import Batch, method_of
from raydense.training.piece_count import accumulates

Inputs = dict[str, dict[str, Tensor]]  # of a model: each kind of texts as a padded batch
# What a forward and backward costs apart from its tokens, as so many tokens: the less, the more pieces of about one length.
_EACH_COSTS = {"cpu": 256, "cuda": 8192}
_MOST = 16


@dataclass(frozen=True)
class Cut:
    """A part of a step as it runs: the `texts` of each piece.

    With `places` the pieces have one loss: `places[k]` int64 [n] says where each row of the k-th kind of texts is now, and `rest` has one
    dict, the tensors for the loss. They run by gradient caching, or, as `one_graph`, with all their graphs at once. Without `places`, each piece
    has its own dict in `rest` and the share of its loss in `shares`. `tokens` are those of the part, without padding.
    """

    texts: list[Inputs]
    rest: list[Batch]
    tokens: int
    shares: tuple[float, ...] = (1.0,)
    places: tuple[Tensor, ...] = ()
    one_graph: bool = False

    def moved(self, move: Callable[[Tensor], Tensor]) -> Cut:
        """With each tensor moved."""
        texts, rest, places = tree_map(move, (self.texts, self.rest, self.places))
        return replace(self, texts=texts, rest=rest, places=places)

    def tensors(self) -> list[Tensor]:
        """All tensors."""
        return tree_leaves((self.texts, self.rest, self.places))


def cut_up(settings: LoopSettings, batch: Batch, pieces: int, device: str = "cpu") -> Cut:
    """A part of a step, as `Method.prepare` makes it, in pieces: by plain accumulation if no loss couples its queries, else by gradient caching.

    One piece is cut, too, where the texts' lengths differ, into as many as take the least time on this kind of `device`: little of each is
    padding, and all run with their graphs at once.
    """
    texts = {name: value for name, value in batch.items() if isinstance(value, dict)}
    rest = {name: value for name, value in batch.items() if name not in texts}
    tokens = sum(int(one["attention_mask"].sum()) for one in texts.values())
    if pieces > 1 and accumulates(settings):
        return _of_queries(settings, texts, rest, pieces, tokens)
    orders, one_graph = by_length(texts), pieces == 1
    if one_graph and not alike(settings):
        pieces = _cheapest(texts, orders, _EACH_COSTS[device])
    if pieces == 1:
        return Cut([_with_places(texts)], [rest], tokens)
    cut = [_with_places(piece_of(texts, orders, i, pieces)) for i in range(pieces)]
    return Cut(cut, [rest], tokens, places=tuple(order.argsort() for order in orders.values()), one_graph=one_graph)


def alike(settings: LoopSettings) -> bool:
    """Whether all workers must run as many forwards as each other: in each, ZeRO 3 gathers the weights from all of them."""
    return shards_weights(settings) and settings.workers > 1


def _cheapest(texts: Inputs, orders: dict[str, Tensor], each_costs: int) -> int:
    """The number of pieces, a power of two, with the fewest tokens, padding and what each piece costs included."""
    lengths = [batch["attention_mask"].sum(dim=1)[orders[name]].tolist() for name, batch in texts.items()]
    counts = [2**power for power in range(_MOST.bit_length())]
    return min(counts, key=lambda pieces: sum(_padded(of_kind, pieces) for of_kind in lengths) + each_costs * pieces)


def _padded(lengths: list[int], pieces: int) -> int:
    """The tokens of a kind of texts, of these lengths, with padding, in so many pieces."""
    cut = [lengths[rows_of(len(lengths), i, pieces)] or lengths[:1] for i in range(pieces)]
    return sum(len(some) * max(some) for some in cut)


def _of_queries(settings: LoopSettings, texts: Inputs, rest: Batch, pieces: int, tokens: int) -> Cut:
    """Each piece has the queries whose texts have about one length, so that little of it is padding.

    The loss of a piece counts by its share of the queries, or by 1 if the method adds.
    """
    method = method_of(settings)
    queries = method.queries_of(settings)
    longest = sum(batch["attention_mask"].sum(dim=1).view(queries, -1).amax(dim=1) for batch in texts.values())
    assert isinstance(longest, Tensor)
    order = longest.argsort(descending=True, stable=True)
    taken = [order[rows_of(queries, i, pieces)] for i in range(pieces)]
    cut = [{name: _cut(one, _rows_of_queries(some, len(one["attention_mask"]), queries)) for name, one in texts.items()} for some in taken]
    of_pieces = [
        {name: value[_rows_of_queries(some, len(value), queries)] if value.dim() else value for name, value in rest.items()}
        for some in taken
    ]
    shares = tuple(1.0 if method.adds else len(some) / queries for some in taken)
    return Cut([_with_places(one) for one in cut], of_pieces, tokens, shares)


def _rows_of_queries(taken: Tensor, rows: int, queries: int) -> Tensor:
    """The rows of some queries, of `rows` with equally many for each."""
    each = rows // queries
    return (taken[:, None] * each + torch.arange(each)).flatten()


def _with_places(texts: Inputs) -> Inputs:
    """With the places of masked tokens in each batch that has `labels`: a GPU that has to find them makes the step wait for it."""
    return {name: {**one, "masked": masked_places(one["labels"])} if "labels" in one else one for name, one in texts.items()}


def by_length(texts: Inputs) -> dict[str, Tensor]:
    """The rows of each kind of texts, longest first, int64 [n].

    Kinds with as many rows are ordered together, by the sum of their lengths: the rows may be pairs, as a generator's are.
    """
    lengths: dict[int, Tensor] = {}
    for batch in texts.values():
        of_rows = batch["attention_mask"].sum(dim=1)
        lengths[len(of_rows)] = lengths.get(len(of_rows), torch.zeros_like(of_rows)) + of_rows
    orders = {rows: total.argsort(descending=True, stable=True) for rows, total in lengths.items()}
    return {name: orders[len(batch["attention_mask"])] for name, batch in texts.items()}


def piece_of(texts: Inputs, orders: dict[str, Tensor], piece: int, pieces: int) -> Inputs:
    """The rows of each kind of texts in a piece, in this order, with minimal padding.

    A kind without rows in the piece gets its first row, which does not count: with ZeRO the workers process each weight together,
    so every piece must use every weight, on every worker.
    """
    cut = {}
    for name, order in orders.items():
        rows = order[rows_of(len(order), piece, pieces)]
        cut[name] = _cut(texts[name], rows if len(rows) else order[:1])
    return cut


def _cut(batch: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    longest = int(batch["attention_mask"][rows].sum(dim=1).max())
    return {key: value[rows, :longest] for key, value in batch.items()}


def rows_of(n: int, piece: int, pieces: int) -> slice:
    """The rows of a piece, of `n` in all."""
    return slice(n * piece // pieces, n * (piece + 1) // pieces)
