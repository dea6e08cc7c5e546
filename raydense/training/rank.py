"""Which worker of a training this is."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rank:
    """Which worker this is."""

    rank: int
    workers: int
    on_machine: int
    device: torch.device
