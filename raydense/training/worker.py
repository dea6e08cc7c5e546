"""Which worker of a training this is."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Worker:
    """The number of this worker, of how many, how many of them are on its machine, and its device."""

    rank: int
    workers: int
    on_machine: int
    device: torch.device
