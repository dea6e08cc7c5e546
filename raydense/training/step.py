"""Forward and backward of one part of a step: at once, or piece by piece with the same gradients and less memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raydense.models.sharded import OnAllWorkers
from raydense.training.engine import Engine
from raydense.training.method import Batch, Method, Metrics, Outputs, method_of
from raydense.training.pieces import Cut, Inputs, cut_up, rows_of


def forward_and_backward(engine: Engine, method: Method, batch: Batch, pieces: int, seeds: list[int]) -> Metrics:
    """As `run_cut`, of a part as `Method.prepare` makes it."""
    return run_cut(engine, method, cut_up(method.settings, batch, pieces, engine.device.type), seeds)


def run_cut(engine: Engine, method: Method, part: Cut, seeds: list[int]) -> Metrics:
    """Add the gradient of a part's loss to the model's, and return loss and metrics, detached; `seeds` has one seed per piece."""
    rest = [{name: value.to(engine.device, non_blocking=True) for name, value in one.items()} for one in part.rest]
    if part.places:
        run_pieces = _together if part.one_graph else _cached
        return run_pieces(engine, method, part, rest[0], seeds)
    summed: Metrics = {}
    for texts, one, share, seed in zip(part.texts, rest, part.shares, seeds, strict=True):
        for name, value in _at_once(engine, method, texts, one, share, seed).items():
            summed[name] = summed[name] + share * value if name in summed else share * value
    return summed


def _at_once(engine: Engine, method: Method, texts: Inputs, rest: Batch, share: float, seed: int) -> Metrics:
    """The gradient of `share` of the loss."""
    torch.manual_seed(seed)
    loss, metrics = _loss(engine, method, run(engine, texts), rest)
    engine.backward(loss * share if share != 1 else loss)
    return {"loss": loss.detach(), **metrics}


def _together(engine: Engine, method: Method, part: Cut, rest: Batch, seeds: list[int]) -> Metrics:
    """Pieces of about one length with all their graphs at once, and one backward: the same gradient as of one piece, with less padding."""
    torch.manual_seed(seeds[0])
    loss, metrics = _loss(engine, method, _in_order(_joined(engine, part), part), rest)
    engine.backward(loss)
    return {"loss": loss.detach(), **metrics}


def _cached(engine: Engine, method: Method, part: Cut, rest: Batch, seeds: list[int]) -> Metrics:
    """Gradient caching (Gao et al. 2021): the gradients of the whole part, with the graph of one piece at a time.

    Run all pieces without a graph; compute the gradient of the loss with respect to each output; run the pieces again, each with its
    graph, and backpropagate these gradients. A piece's seed makes dropout the same in both runs. The loss sees the outputs in the order
    of the batch. Texts that need no gradient are not run again, on no worker. Of weights that the loss itself reads, as a learned temperature,
    each piece adds its share of the gradient by the engine, too, which scales and averages.
    """
    done = method_of(method.settings).without_gradient(method.settings)
    outputs = _outputs_of_all(engine, part, seeds)
    loss, metrics = _loss(engine, method, _in_order(outputs, part), rest)
    pieces = len(part.texts)
    weights = [weight for weight in engine.module.parameters() if weight.requires_grad]
    found = torch.autograd.grad(loss, [*outputs, *weights], allow_unused=True)
    gradients = [
        [o[:0] if g is None else g[rows_of(len(o), i, pieces)] for i in range(pieces)] for o, g in zip(outputs, found, strict=False)
    ]
    of_loss = [(weight, g / pieces) for weight, g in zip(weights, found[len(outputs) :], strict=True) if g is not None]
    for i, piece in enumerate(part.texts):
        torch.manual_seed(seeds[i])
        again = run(engine, {name: one for name, one in piece.items() if name not in done})
        pulled = [(o[: len(g[i])] * g[i]).sum() for o, g in zip(again, gradients, strict=True) if o is not None and o.requires_grad]
        pulled += [(weight.float() * g.float()).sum() for weight, g in of_loss]
        engine.backward(torch.stack(pulled).sum())
    return {"loss": loss.detach(), **metrics}


def _loss(engine: Engine, method: Method, outputs: Outputs, rest: Batch) -> tuple[Tensor, Metrics]:
    """As `loss_of`; InputError if the loss itself reads weights, and the engine would not train them."""
    of_model = {output.grad_fn for output in outputs if isinstance(output, Tensor)}
    loss, metrics = loss_of(method, outputs, rest)
    if not engine.trains_weights_of_loss and _reads_weights(loss, of_model):
        raise OnAllWorkers("reads weights itself, which DeepSpeed does not train", _name_of_loss(method), "set engine.name to ddp")
    return loss, metrics


def _reads_weights(loss: Tensor, of_model: set[Any]) -> bool:
    """Whether the graph of a loss reaches a weight other than through the nodes `of_model`."""
    seen, left = of_model, [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            if isinstance(getattr(node, "variable", None), nn.Parameter):
                return True
    return False


def loss_of(method: Method, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
    """The loss of a method and its metrics, float32 without a gradient; InputError if `loss` returns anything but a scalar and a dict of
    scalars or numbers, as a method in development may."""
    match found := method.loss(outputs, batch):
        case (Tensor(ndim=0) as loss, dict() as metrics):
            return loss, {name: _metric(method, name, value, loss.device) for name, value in metrics.items()}
        case (Tensor() as loss, dict()):
            returned = f"a loss of shape {list(loss.shape)}"
        case _:
            returned = f"a {type(found).__name__}"
    fix = "return the mean over the queries, a scalar, and a dict of metrics: `return loss, {}`"
    raise OnAllWorkers(f"returns {returned}", _name_of_loss(method), fix)


def _metric(method: Method, name: str, value: object, device: torch.device) -> Tensor:
    match value:
        case Tensor(ndim=0):
            return value.detach().to(device, torch.float32)
        case int() | float():
            return torch.tensor(float(value), device=device)
    returned = f"of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise OnAllWorkers(f"returns the metric {name!r}, {returned}", _name_of_loss(method), "give a scalar: its mean over the queries")


def _name_of_loss(method: Method) -> str:
    return f"{type(method).__module__}.{type(method).__qualname__}.loss"


def run(engine: Engine, texts: Inputs) -> Outputs:
    """The model's outputs for texts on any device, a tensor for each kind, None for a kind that is not given."""
    given = {name: {k: v.to(engine.device, non_blocking=True) for k, v in batch.items()} for name, batch in texts.items()}
    outputs = engine.forward(**given)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _in_order(outputs: tuple[Tensor, ...], part: Cut) -> tuple[Tensor, ...]:
    """The outputs of each kind of texts in the order of the batch."""
    return tuple(output[place] for output, place in zip(outputs, part.places, strict=True))


def _outputs_of_all(engine: Engine, part: Cut, seeds: list[int]) -> tuple[Tensor, ...]:
    """The model's outputs for all pieces, as leaves whose gradient can be computed."""
    with torch.no_grad():
        return tuple(output.requires_grad_() for output in _joined(engine, part, seeds))


def _joined(engine: Engine, part: Cut, seeds: list[int] | None = None) -> tuple[Tensor, ...]:
    """The model's outputs for each kind of texts, of all pieces one after another, float32; `seeds` has one for each piece."""
    found: list[list[Tensor]] = [[] for _ in part.places]
    for i, piece in enumerate(part.texts):
        if seeds is not None:
            torch.manual_seed(seeds[i])
        for outputs, output, place in zip(found, run(engine, piece), part.places, strict=True):
            rows = rows_of(len(place), i, len(part.texts))
            assert output is not None, "every kind is in every piece"
            outputs.append(output[: rows.stop - rows.start])
    return tuple(torch.cat(outputs).float() for outputs in found)
