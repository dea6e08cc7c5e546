"""How a worker's cores are shared by what runs on them: torch's threads, and the tokenizer's, which make batches meanwhile."""

from __future__ import annotations

import os

import torch

from raydense.runtime.session import physical_cpus
from raydense.training.prefetch import AHEAD


def share_cores(device: torch.device, cpus: int, on_machine: int, behind: int, offload: bool = False) -> int:
    """Set how many threads torch and the tokenizers use in this worker, one of `on_machine`; returns how many threads make batches.

    On CPUs the step has all cores, except one for what goes on `behind` the training, and texts are tokenised in one thread: more would
    take cores from a step which takes far longer. On a GPU the tokenizer has all cores but one, the step's; with `offload` torch has all, too,
    as it updates the weights on them while no gradient is computed. RAYON_NUM_THREADS, if set, stays;
    the tokenizers read it when they first run, so this comes before.
    """
    mine = max(cpus, (physical_cpus() - behind) // on_machine, 1)
    if device.type == "cpu" or offload:
        torch.set_num_threads(mine)
    os.environ.setdefault("RAYON_NUM_THREADS", "1" if device.type == "cpu" else str(max(1, mine - 1)))
    return 1 if device.type == "cpu" else AHEAD
