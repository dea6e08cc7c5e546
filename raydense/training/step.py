"""Forward and backward of one part of a step: at once, or piece by piece with the same gradients and less memory."""

from __future__ import annotations

import ctypes
import math
import platform

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raydense.errors import InputError
from raydense.training.engine import Engine
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import Batch, Method, Metrics, Outputs, method_of

_M_MMAP_THRESHOLD = -3  # of malloc.h
Texts = dict[str, dict[str, Tensor]]


def texts_of(settings: LoopSettings) -> dict[str, int]:
    """How many texts of each kind a worker has in a part of a step, at most."""
    return method_of(settings).texts_of(settings)


def accumulates(settings: LoopSettings) -> bool:
    """Whether a part runs in pieces by plain accumulation: no loss couples its queries, and the texts of one query fit in a piece."""
    if not settings.micro_batch or settings.micro_batch == "auto":
        return False
    return not method_of(settings).couples and settings.micro_batch >= _each(settings)


def pieces_of(settings: LoopSettings) -> int:
    """The number of pieces in which a worker runs each part of a step: no piece has more than `micro_batch` texts of a kind."""
    if accumulates(settings):
        assert isinstance(settings.micro_batch, int)
        return math.ceil(method_of(settings).queries_of(settings) / (settings.micro_batch // _each(settings)))
    assert isinstance(settings.micro_batch, int), "micro_batch auto is found first"
    return math.ceil(max(texts_of(settings).values()) / settings.micro_batch) if settings.micro_batch else 1


def _each(settings: LoopSettings) -> int:
    """The most texts of a kind that one query has."""
    return max(texts_of(settings).values()) // method_of(settings).queries_of(settings)


def largest_piece(settings: LoopSettings, pieces: int) -> dict[str, int]:
    """How many texts of each kind the largest piece has."""
    texts, queries = texts_of(settings), method_of(settings).queries_of(settings)
    if accumulates(settings):
        return {name: -(-queries // pieces) * (count // queries) for name, count in texts.items()}
    return {name: -(-count // pieces) for name, count in texts.items()}


def forward_and_backward(engine: Engine, method: Method, batch: Batch, pieces: int, seeds: list[int]) -> Metrics:
    """Add the gradient of a part's loss to the model's, and return loss and metrics, detached; `seeds` has one seed per piece.

    Several pieces run by plain accumulation if no loss couples the part's queries, otherwise by gradient caching.
    """
    texts = {name: value for name, value in batch.items() if isinstance(value, dict)}
    rest = {name: value.to(engine.device, non_blocking=True) for name, value in batch.items() if name not in texts}
    if pieces == 1:
        return _at_once(engine, method, texts, rest, 1.0, seeds[0])
    if accumulates(method.settings):
        return _accumulated(engine, method, texts, rest, pieces, seeds)
    return _cached(engine, method, texts, rest, pieces, seeds)


def _at_once(engine: Engine, method: Method, texts: Texts, rest: Batch, share: float, seed: int) -> Metrics:
    """The gradient of `share` of the loss."""
    torch.manual_seed(seed)
    loss, metrics = loss_of(method, run(engine, texts), rest)
    engine.backward(loss * share if share != 1 else loss)
    return {"loss": loss.detach(), **metrics}


def _accumulated(engine: Engine, method: Method, texts: Texts, rest: Batch, pieces: int, seeds: list[int]) -> Metrics:
    """Plain accumulation: one piece after another, each weighted by its share of the queries, or by 1 if the method adds.

    A piece has the queries whose texts have about one length, so that little of it is padding.
    """
    queries = method.queries_of(method.settings)
    longest = sum(batch["attention_mask"].sum(dim=1).view(queries, -1).amax(dim=1) for batch in texts.values())
    assert isinstance(longest, Tensor)
    order = longest.argsort(descending=True, stable=True)
    summed: Metrics = {}
    for i in range(pieces):
        taken = order[_rows(queries, i, pieces)]
        cut = {name: _cut(one, _of_queries(taken, len(one["attention_mask"]), queries)) for name, one in texts.items()}
        of_piece = {name: value[_of_queries(taken, len(value), queries)] if value.dim() else value for name, value in rest.items()}
        share = 1.0 if method.adds else len(taken) / queries
        for name, value in _at_once(engine, method, cut, of_piece, share, seeds[i]).items():
            summed[name] = summed.get(name, torch.zeros_like(value)) + share * value
    return summed


def _of_queries(taken: Tensor, rows: int, queries: int) -> Tensor:
    """The rows of some queries, of `rows` with equally many for each."""
    each = rows // queries
    return (taken[:, None] * each + torch.arange(each)).flatten()


def _cached(engine: Engine, method: Method, texts: Texts, rest: Batch, pieces: int, seeds: list[int]) -> Metrics:
    """Gradient caching (Gao et al. 2021): the gradients of the whole part, with the graph of one piece at a time.

    Run all pieces without a graph; compute the gradient of the loss with respect to each output; run the pieces again, each with its
    graph, and backpropagate these gradients. A piece's seed makes dropout the same in both runs. A piece has texts of about one
    length, so that little of it is padding; the loss sees the outputs in the order of the batch. Texts that need no gradient are not
    run again, on no worker.
    """
    texts, places = by_length(texts)
    cut = [piece_of(texts, i, pieces) for i in range(pieces)]
    done = method_of(method.settings).without_gradient(method.settings)
    outputs = _outputs_of_all(engine, texts, cut, seeds)
    loss, metrics = loss_of(method, tuple(o[place.to(o.device)] for o, place in zip(outputs, places, strict=True)), rest)
    loss.backward()
    gradients = [[o.grad[_rows(len(o), i, pieces)] if o.grad is not None else o[:0] for i in range(pieces)] for o in outputs]
    for i, piece in enumerate(cut):
        torch.manual_seed(seeds[i])
        again = run(engine, {name: one for name, one in piece.items() if name not in done})
        pulled = [(o[: len(g[i])] * g[i]).sum() for o, g in zip(again, gradients, strict=True) if o is not None and o.requires_grad]
        engine.backward(torch.stack(pulled).sum())
    return {"loss": loss.detach(), **metrics}


def loss_of(method: Method, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
    """The loss of a method and its metrics; InputError if `loss` returns anything but a scalar and a dict, as a method in development may."""
    match found := method.loss(outputs, batch):
        case (Tensor(ndim=0) as loss, dict() as metrics):
            return loss, metrics
        case (Tensor() as loss, dict()):
            returned = f"a loss of shape {list(loss.shape)}"
        case _:
            returned = f"a {type(found).__name__}"
    where = f"{type(method).__module__}.{type(method).__qualname__}.loss"
    raise InputError(f"returns {returned}", where, "return the mean over the queries, a scalar, and a dict of metrics: `return loss, {}`")


def run(engine: Engine, texts: Texts) -> Outputs:
    """The model's outputs for texts on the CPU, a tensor for each kind, None for a kind that is not given."""
    given = {name: {k: v.to(engine.device, non_blocking=True) for k, v in batch.items()} for name, batch in texts.items()}
    outputs = engine.forward(**given)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def by_length(texts: Texts) -> tuple[Texts, list[Tensor]]:
    """The rows of each kind of texts, longest first, and the place where each row is now, int64 [n] for each kind.

    Kinds with as many rows are ordered together, by the sum of their lengths: the rows may be pairs, as a generator's are.
    """
    lengths: dict[int, Tensor] = {}
    for batch in texts.values():
        of_rows = batch["attention_mask"].sum(dim=1)
        lengths[len(of_rows)] = lengths.get(len(of_rows), torch.zeros_like(of_rows)) + of_rows
    orders = {rows: total.argsort(descending=True, stable=True) for rows, total in lengths.items()}
    order_of = {name: orders[len(batch["attention_mask"])] for name, batch in texts.items()}
    ordered = {name: {key: value[order_of[name]] for key, value in batch.items()} for name, batch in texts.items()}
    return ordered, [order_of[name].argsort() for name in texts]


def piece_of(texts: Texts, piece: int, pieces: int) -> Texts:
    """The rows of each kind of texts in a piece, with minimal padding.

    A kind without rows in the piece gets its first row, which does not count: with ZeRO the workers process each weight together,
    so every piece must use every weight, on every worker.
    """
    cut = {}
    for name, batch in texts.items():
        rows = _rows(len(batch["attention_mask"]), piece, pieces)
        cut[name] = _cut(batch, rows if rows.start < rows.stop else slice(0, 1))
    return cut


def _cut(batch: dict[str, Tensor], rows: slice | Tensor) -> dict[str, Tensor]:
    longest = int(batch["attention_mask"][rows].sum(dim=1).max())
    return {key: value[rows, :longest] for key, value in batch.items()}


def _rows(n: int, piece: int, pieces: int) -> slice:
    return slice(n * piece // pieces, n * (piece + 1) // pieces)


def checkpoint_activations(model: nn.Module) -> None:
    """Let every encoder in `model` store only the inputs of its layers, and compute the rest again in the backward pass.

    InputError if an encoder's family does not support that.
    """
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            if not part.supports_gradient_checkpointing:
                fix = "leave it out; micro_batch saves memory too"
                raise InputError(f"{type(part).__name__} has none", "activation_checkpointing", fix)
            part.gradient_checkpointing_enable({"use_reentrant": False})


def give_memory_back() -> None:
    """Let glibc return each freed tensor of a mebibyte or more to the system at once, for a third more time.

    Otherwise its heap keeps holes between the few stored activations, as large as all that were freed.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


def _outputs_of_all(engine: Engine, texts: Texts, cut: list[Texts], seeds: list[int]) -> tuple[Tensor, ...]:
    """The model's outputs for all pieces, as leaves whose gradient can be computed."""
    counts = [len(batch["attention_mask"]) for batch in texts.values()]
    found: list[list[Tensor]] = [[] for _ in counts]
    with torch.no_grad():
        for i, (piece, seed) in enumerate(zip(cut, seeds, strict=True)):
            torch.manual_seed(seed)
            for outputs, output, n in zip(found, run(engine, piece), counts, strict=True):
                rows = _rows(n, i, len(cut))
                assert output is not None, "every kind is in every piece"
                outputs.append(output[: rows.stop - rows.start])
    return tuple(torch.cat(outputs).float().requires_grad_() for outputs in found)
