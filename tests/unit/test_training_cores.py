"""How many threads torch and the tokenizers of a worker get."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from raydense.training import cores
from raydense.training.prefetch import AHEAD

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of eight cores; what a test sets goes with it."""
    monkeypatch.setattr(cores, "physical_cpus", lambda: 8)
    monkeypatch.setenv("RAYON_NUM_THREADS", "")
    monkeypatch.delenv("RAYON_NUM_THREADS")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("on_machine", "behind", "threads"), [(1, 0, 8), (2, 0, 4), (2, 1, 3), (16, 0, 1)])
def test_on_cpus_the_step_has_the_cores(on_machine: int, behind: int, threads: int) -> None:
    assert cores.share_cores(CPU, 1, on_machine, behind) == 1
    assert torch.get_num_threads() == threads
    assert os.environ["RAYON_NUM_THREADS"] == "1"


def test_on_a_gpu_the_tokenizer_has_them() -> None:
    before = torch.get_num_threads()
    assert cores.share_cores(GPU, 1, 2, 0) == AHEAD
    assert os.environ["RAYON_NUM_THREADS"] == "3"
    assert torch.get_num_threads() == before


def test_with_offload_the_update_has_them_too() -> None:
    cores.share_cores(GPU, 1, 2, 0, offload=True)
    assert torch.get_num_threads() == 4


def test_a_number_of_threads_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "5")
    cores.share_cores(GPU, 1, 1, 0)
    assert os.environ["RAYON_NUM_THREADS"] == "5"
