"""Reads the files of DeepSpeed's checkpoints: where they are, and those of ZeRO 1 or 2 also by another number of workers than wrote them.

In these each worker has one shard of the float32 weights and of each of the optimiser's moments: the parameters of a group are
concatenated, padded with zeros, and cut into one shard per worker. Here the shards are concatenated again and cut for the new number
of workers. A worker reads only the shards that overlap its own, and nothing is written: a kill leaves the checkpoint unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils import fragment_address
from torch import Tensor

from raydense.storage import Place
from raydense.training.outage import outlasting

_BASE, _WEIGHTS, _STATE = "base_optimizer_state", "single_partition_of_fp32_groups", "optimizer_state_dict"


class Files(TorchCheckpointEngine):
    """Lets DeepSpeed read the files of the checkpoint in `folder`; one of a bucket is fetched when it is read."""

    def __init__(self, folder: Place) -> None:
        super().__init__()
        self._folder = folder

    @contextmanager
    def named(self) -> Iterator[str]:
        """A folder to give to DeepSpeed, which looks for files before it reads them; they are empty there."""
        with TemporaryDirectory() as names:
            (Path(names) / self._folder.name).mkdir()
            for name in outlasting(self._folder.entries, "looking for a checkpoint"):
                (Path(names) / self._folder.name / name).touch()
            yield names

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        """The content of the file that has the name of `path`."""
        content: dict[str, Any] = super().load(self._here(path), map_location)
        return content

    def _here(self, path: str) -> str:
        return str(outlasting((self._folder / Path(path).name).fetch, "reading a checkpoint"))


class OtherWorkersFiles(Files):
    """Lets DeepSpeed read the files of `before` workers as if the present number of workers had written them.

    `lengths`: the length of this worker's shard of each group of parameters.
    """

    def __init__(self, folder: Place, before: int, lengths: list[int]) -> None:
        super().__init__(folder)
        self._before, self._lengths = before, lengths

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        """The model's file unchanged, or a worker's file as the present number of workers would have written it."""
        if path.endswith("_optim_states.pt"):
            return {_STATE: self._own([re.sub(r"zero_pp_rank_\d+_", f"zero_pp_rank_{rank}_", path) for rank in range(self._before)])}
        return {**super().load(path, map_location), "dp_world_size": dist.get_world_size()}

    def _own(self, files: list[str]) -> dict[str, Any]:
        shards = [_read(self._here(file))[_STATE] for file in files]
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
