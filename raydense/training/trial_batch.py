"""The longest batch of a training, and its forward and backward: what memory it takes, and which weights it uses."""

from __future__ import annotations

import torch
from torch import nn

from raydense.models.masking import NOT_MASKED
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of
from raydense.training.piece_count import largest_piece
from raydense.training.pieces import Inputs


def longest_batch(
    model: nn.Module, settings: LoopSettings, pieces: int, device: str | torch.device = "cpu", most: int | None = None
) -> Inputs:
    """A batch of the largest of `pieces`, every text as long as the model's lengths allow, and `most`; in pre-training tokens at its end are masked."""
    method = method_of(settings)
    lengths, masked = method.lengths(model), method.masked(settings)
    batch: Inputs = {}
    for name, count in largest_piece(settings, pieces).items():
        shape = (count, min(lengths[name], most or lengths[name]))
        batch[name] = {key: torch.ones(shape, dtype=torch.int64, device=device) for key in ("input_ids", "attention_mask")}
        if share := masked.get(name):
            first = round((1 - share) * shape[1])
            whole = torch.ones(shape, dtype=torch.int64, device=device)
            batch[name]["labels"] = whole.index_fill(1, torch.arange(first, device=device), NOT_MASKED)
            starts, ends = torch.arange(count, device=device)[:, None] * shape[1], torch.arange(first, shape[1], device=device)
            batch[name]["masked"] = (starts + ends).flatten()
    return batch


def run_trial(model: nn.Module, batch: Inputs) -> None:
    """Outputs of the batch, and a gradient of each weight."""
    outputs = model(**batch)
    given = [o for o in (outputs if isinstance(outputs, tuple) else (outputs,)) if o is not None and o.requires_grad]
    torch.stack([o.sum() for o in given]).sum().backward()
