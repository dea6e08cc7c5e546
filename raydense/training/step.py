"""Forward and backward of one part of a step: at once, or piece by piece with the same gradients and less memory (gradient caching)."""

from __future__ import annotations

import ctypes
import math
import platform

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raydense.errors import InputError
from raydense.training.engine import Engine
from raydense.training.methods import Batch, Metrics, Objective, Outputs
from raydense.training.settings import PretrainSettings, Training

_M_MMAP_THRESHOLD = -3  # of malloc.h
Texts = dict[str, dict[str, Tensor]]


def texts_of(settings: Training) -> dict[str, int]:
    """How many texts of each kind a worker has in a part of a step, at most; a passage in several lists counts once."""
    part = settings.batch_size // settings.accumulation
    queries = part // settings.workers
    if isinstance(settings, PretrainSettings):
        return {"passages": queries} | ({"contexts": queries} if settings.context else {})
    others = part - 1 if settings.objective == "joint" and settings.in_batch else 0
    lists = queries * (settings.positives + settings.negatives)
    if settings.objective == "reranker":
        return {"pairs": lists}
    if settings.objective == "joint":
        passages = lists + (part - queries if settings.in_batch else 0)
        return {"queries": queries, "passages": passages, "pairs": lists + queries * others}
    return {"queries": queries, "passages": lists}


def pieces_of(settings: Training) -> int:
    """In how many pieces a worker runs each part of a step, so that none has more than `micro_batch` texts of a kind."""
    assert isinstance(settings.micro_batch, int), "micro_batch auto is found first"
    return math.ceil(max(texts_of(settings).values()) / settings.micro_batch) if settings.micro_batch else 1


def forward_and_backward(engine: Engine, objective: Objective, batch: Batch, pieces: int, seeds: list[int]) -> Metrics:
    """Add the gradient of a part's loss to the model's, and return the loss with the metrics, all detached.

    With several pieces (Gao et al. 2021): run all of them without a graph; from the loss over their outputs take the gradient of
    each output; run them again, each with its graph, and send these gradients back. `seeds`, one a piece, make dropout draw the
    same both times.
    """
    texts = {name: value for name, value in batch.items() if isinstance(value, dict)}
    rest = {name: value.to(engine.device, non_blocking=True) for name, value in batch.items() if name not in texts}
    if pieces == 1:
        torch.manual_seed(seeds[0])
        loss, metrics = objective.loss(run(engine, texts), rest)
        engine.backward(loss)
        return {"loss": loss.detach(), **metrics}
    cut = [piece_of(texts, i, pieces) for i in range(pieces)]
    outputs = _outputs_of_all(engine, texts, cut, seeds)
    loss, metrics = objective.loss(outputs, rest)
    loss.backward()
    gradients = [[o.grad[_rows(len(o), i, pieces)] if o.grad is not None else o[:0] for i in range(pieces)] for o in outputs]
    for i, piece in enumerate(cut):
        torch.manual_seed(seeds[i])
        again = run(engine, piece)
        pulled = [(o[: len(g[i])] * g[i]).sum() for o, g in zip(again, gradients, strict=True) if o is not None and o.requires_grad]
        engine.backward(torch.stack(pulled).sum())
    return {"loss": loss.detach(), **metrics}


def run(engine: Engine, texts: Texts) -> Outputs:
    """The model's outputs for texts on the CPU, a tensor for each kind, None for a kind that is not given."""
    given = {name: {k: v.to(engine.device, non_blocking=True) for k, v in batch.items()} for name, batch in texts.items()}
    outputs = engine.forward(**given)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def piece_of(texts: Texts, piece: int, pieces: int) -> Texts:
    """The `_rows` of each kind of texts, padded no longer than they need.

    Of a kind that has none there the first row comes instead, and counts nothing: with ZeRO the workers work on each weight together,
    so every piece must need every weight, on every worker.
    """
    cut = {}
    for name, batch in texts.items():
        rows = _rows(len(batch["attention_mask"]), piece, pieces)
        rows = rows if rows.start < rows.stop else slice(0, 1)
        longest = int(batch["attention_mask"][rows].sum(dim=1).max())
        cut[name] = {key: value[rows, :longest] for key, value in batch.items()}
    return cut


def _rows(n: int, piece: int, pieces: int) -> slice:
    return slice(n * piece // pieces, n * (piece + 1) // pieces)


def checkpoint_activations(model: nn.Module) -> None:
    """Let every encoder in `model` keep only the inputs of its layers, and compute the rest again on the way back.

    InputError where an encoder's family cannot.
    """
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            if not part.supports_gradient_checkpointing:
                fix = "leave it out; micro_batch saves memory too"
                raise InputError(f"{type(part).__name__} has none", "activation_checkpointing", fix)
            part.gradient_checkpointing_enable({"use_reentrant": False})


def give_memory_back() -> None:
    """Let glibc return each freed tensor of a mebibyte or more to the system at once, for a third more time.

    Else its heap keeps holes between the few activations that are kept, as large as all those that are not.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


def _outputs_of_all(engine: Engine, texts: Texts, cut: list[Texts], seeds: list[int]) -> tuple[Tensor, ...]:
    """What the model gives for all pieces, as leaves whose gradient can be taken."""
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
