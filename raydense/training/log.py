"""The log of a training's steps: losses and metrics, held on the device until worker 0 writes them."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from raydense.storage import Place
from raydense.training.history import History, Line
from raydense.training.rank import Rank


class Log:
    """Losses and metrics of steps, kept on the device until worker 0 writes their means over workers."""

    def __init__(self, shared: Place, done: int, place: Rank) -> None:
        self.place = place
        self._held: list[tuple[int, Line, dict[str, Tensor]]] = []
        self._history = History(shared, done) if place.rank == 0 else None

    def add(self, step: int, lr: float, norm: float, values: dict[str, Tensor]) -> None:
        """Add the scalars of a step, and the norm of its gradient: the step is marked `skipped` where that is not finite."""
        after = {"lr": lr, "gradient_norm": norm} if math.isfinite(norm) else {"lr": lr, "skipped": 1}
        self._held.append((step, after, values))

    def flush(self, more: Line | None = None) -> None:
        """Write the added steps, with `more` for the last one; without the numbers that are not finite, which JSON does not have."""
        if not self._held:
            return
        values = torch.stack([torch.stack(list(v.values())) for _, _, v in self._held])
        if self.place.workers > 1:
            dist.all_reduce(values)
            values /= self.place.workers
        lines: list[Line] = [
            {"step": step, **{name: value for name, value in zip(held, row, strict=True) if math.isfinite(value)}, **after}
            for (step, after, held), row in zip(self._held, values.tolist(), strict=True)
        ]
        lines[-1].update(more or {})
        self._held.clear()
        if self._history is not None:
            self._history.add(lines)

    def send(self) -> None:
        """Make what was written visible to the driver."""
        if self._history is not None:
            self._history.send()

    def close(self) -> None:
        """Close the history, if this worker writes it."""
        if self._history is not None:
            self._history.close()
