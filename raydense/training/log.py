"""The log of a training's steps, which worker 0 writes: the history, and next to it what the steps took of the machines."""

from __future__ import annotations

import math
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor

from raydense.storage import Place
from raydense.training.gather import gather
from raydense.training.history import USAGE, USAGE_EVENTS, History, Line
from raydense.training.worker import Worker


class Log:
    """Losses and metrics of steps, kept on the device until worker 0 writes their means over workers."""

    def __init__(self, shared: Place, worker: Worker) -> None:
        self.worker, self._shared = worker, shared
        self._held: list[tuple[int, Line, dict[str, Tensor]]] = []
        self._history: History | None = None
        self._usage: History | None = None
        self._tokens, self._flushed = 0, time.monotonic()
        self.tokens, self.memory = 0, 0.0

    def open(self, done: int) -> None:
        """Begin after `done` steps."""
        if self.worker.rank == 0:
            self._history = History(self._shared, done)
            self._usage = History(self._shared, done, USAGE, USAGE_EVENTS)
        self._flushed = time.monotonic()

    def add(self, step: int, known: Line, norm: float, values: dict[str, Tensor], tokens: int) -> None:
        """Add the scalars of a step, the numbers that all workers know, the norm of its gradient and this worker's tokens.

        The step is marked `skipped` where the norm is not finite.
        """
        after = {"gradient_norm": norm} if math.isfinite(norm) else {"skipped": 1}
        self._held.append((step, known | after, values))
        self._tokens += tokens

    def flush(self, more: Line | None = None) -> None:
        """Write the added steps, with `more` for the last one; without the numbers that are not finite, which JSON does not have."""
        if not self._held:
            return
        values = torch.stack([torch.stack(list(v.values())) for _, _, v in self._held])
        if self.worker.workers > 1:
            dist.all_reduce(values)
            values /= self.worker.workers
        lines: list[Line] = [
            {"step": step, **{name: value for name, value in zip(held, row, strict=True) if math.isfinite(value)}, **after}
            for (step, after, held), row in zip(self._held, values.tolist(), strict=True)
        ]
        lines[-1].update(more or {})
        self._held.clear()
        used = self._used(lines[-1]["step"])
        if self._usage is not None:
            self._usage.add([used])  # first: the driver reads it last, and so has it for each line of the history
        if self._history is not None:
            self._history.add(lines)

    def _used(self, step: int) -> Line:
        """The tokens of all workers for each second since the last flush, and the memory of the worker that has taken most, in GiB."""
        here = torch.tensor([self._tokens, _peak_memory(self.worker.device)], dtype=torch.float64, device=self.worker.device)
        tokens, memory = gather(here[None]).unbind(dim=1)
        now, count = time.monotonic(), int(tokens.sum())
        seconds, self._flushed, self._tokens = now - self._flushed, now, 0
        self.tokens, self.memory = self.tokens + count, round(float(memory.max()) / 2**30, 3)
        return {"step": step, "tokens_per_second": round(count / max(seconds, 1e-9), 1), "memory": self.memory}

    def send(self) -> None:
        """Make what was written visible to the driver."""
        if self._history is not None:
            self._history.send()

    def close(self) -> None:
        """Close the files, if this worker writes them."""
        for one in (self._usage, self._history):
            if one is not None:
                one.close()


def _peak_memory(device: torch.device) -> int:
    """The most bytes that this process has allocated on its GPU at once, on a CPU the most that it has held in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
