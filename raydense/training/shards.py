"""Lets a checkpoint of ZeRO 1 or 2 be read by another number of workers than wrote it.

There each worker has one shard of the float32 weights and of each of the optimiser's moments: the parameters of a group are
concatenated, padded with zeros, and cut into one shard per worker. Here the shards are concatenated again and cut for the new number
of workers. A worker reads only the shards that overlap its own, and nothing is written: a kill leaves the checkpoint unchanged.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils import fragment_address
from torch import Tensor

_BASE, _WEIGHTS, _STATE = "base_optimizer_state", "single_partition_of_fp32_groups", "optimizer_state_dict"


class OtherWorkersFiles(TorchCheckpointEngine):
    """Lets DeepSpeed read the files of `before` workers as if the present number of workers had written them.

    `lengths`: the length of this worker's shard of each group of parameters.
    """

    def __init__(self, before: int, lengths: list[int]) -> None:
        super().__init__()
        self._before, self._lengths = before, lengths

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        """The model's file unchanged, or a worker's file as the present number of workers would have written it."""
        if path.endswith("_optim_states.pt"):
            return {_STATE: self._own([re.sub(r"zero_pp_rank_\d+_", f"zero_pp_rank_{rank}_", path) for rank in range(self._before)])}
        return {**super().load(path, map_location), "dp_world_size": dist.get_world_size()}

    def _own(self, files: list[str]) -> dict[str, Any]:
        shards = [_read(file)[_STATE] for file in files]
        first, starts = shards[0], [dist.get_rank() * length for length in self._lengths]
        weights = [
            cut([shard[_WEIGHTS][group] for shard in shards], start, length)
            for group, (start, length) in enumerate(zip(starts, self._lengths, strict=True))
        ]
        moments = {
            group: {
                name: cut([shard[_BASE]["state"][group][name] for shard in shards], starts[group], self._lengths[group])
                if torch.is_tensor(value) and value.ndim
                else value
                for name, value in state.items()
            }
            for group, state in first[_BASE]["state"].items()
        }
        return {**first, _WEIGHTS: weights, _BASE: {**first[_BASE], "state": moments}}


def cut(shards: list[Tensor], start: int, length: int) -> Tensor:
    """Elements [start, start + length) of the concatenated shards, zeros past their end: [length], on the CPU."""
    found = torch.zeros(length, dtype=shards[0].dtype)
    at = 0
    for shard in shards:
        first, last = max(start, at), min(start + length, at + len(shard))
        if first < last:
            found[first - start : last - start] = shard.detach()[first - at : last - at]
        at += len(shard)
    return found


def _read(file: str) -> dict[str, Any]:
    """A worker's file; its tensors are mapped into memory and not yet read."""
    with torch.serialization.safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
