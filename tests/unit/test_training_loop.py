"""What the loop refuses, without Ray: workers are plain processes of torch's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from raydense.errors import InputError
from raydense.training.loop import Place, refuse_weights_not_finite

CPU = torch.device("cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(value: float) -> None:
    sound = {"a": torch.ones(3), "count": torch.tensor([7])}
    refuse_weights_not_finite(sound, 5, Place(0, 1, 1, CPU))
    with pytest.raises(InputError, match="weights are not finite numbers after step 5; lower --lr"):
        refuse_weights_not_finite({**sound, "b": torch.tensor([1.0, value])}, 5, Place(0, 1, 1, CPU))


def hold_half(rank: int, folder: str) -> None:
    """A worker of two; only the second holds the weight that is wrong."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        refuse_weights_not_finite({"w": torch.tensor([1.0, float("nan")][rank])}, 3, Place(rank, 2, 2, CPU))
    except InputError as error:
        Path(folder, str(rank)).write_text(str(error))


def test_all_workers_refuse_what_one_of_them_holds(tmp_path: Path) -> None:
    multiprocessing.spawn(hold_half, (str(tmp_path),), nprocs=2)
    said = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert said[0] == said[1]
    assert "not finite" in said[0]
