"""Runs a function as the ranks of a training: processes of torch's own, forked from one that has imported what takes seconds."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import multiprocessing

_SLOW = ["deepspeed", "torch._inductor.compile_fx", "setuptools.dist", "transformers.models.bert.modeling_bert"]
_SLOW += ["raydense.training.shards", "raydense.training.loop", "sentence_transformers"]


def run_ranks(function: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """Call `function(rank, *arguments)` in as many processes, and wait for them; an error in one is raised here."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(_SLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        multiprocessing.start_processes(function, arguments, nprocs=ranks, start_method="forkserver")
