"""The best or last weights of a training, next to its checkpoints."""

from __future__ import annotations

from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from raydense.storage import Place


def weights_name(step: int) -> str:
    """The file name of the best or last weights, saved after `step`."""
    return f"weights-{step}.safetensors"


def write_weights(file: Place, weights: dict[str, Tensor]) -> None:
    """Write weights; the file appears only when it is complete."""
    with file.writing() as aside:
        save_file({key: value.clone().contiguous() for key, value in weights.items()}, aside)


def save_weights(shared: Place, step: int, weights: dict[str, Tensor], kept: set[int]) -> None:
    """Write the weights; remove earlier ones, except those of the steps `kept`, which checkpoints name as their best."""
    write_weights(shared / weights_name(step), weights)
    for old in set(shared.names("weights-*.safetensors")) - {weights_name(s) for s in {step, *kept}}:
        (shared / old).delete()


def load_weights(shared: Place, step: int) -> dict[str, Any]:
    """What `save_weights` wrote at `step`."""
    return load_file((shared / weights_name(step)).fetch())
