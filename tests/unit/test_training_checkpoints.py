"""What lies beside the checkpoints: the best weights of whoever continues from one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from raydense.errors import InputError
from raydense.training.checkpoints import RUN, State, load_weights, newest_state, refuse_other_precision, save_weights, weights_file


def checkpoint(storage: Path, state: State) -> None:
    """The part of a checkpoint that says where it stands, as Ray Train lays it down."""
    folder = storage / RUN / f"checkpoint_{state.step}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(asdict(state)))


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), float(step))}


def test_the_best_weights_of_the_newest_checkpoint_outlive_better_ones_after_it(tmp_path: Path) -> None:
    save_weights(tmp_path, 8, weights(8))
    checkpoint(tmp_path, State("fp32", step=10, best_step=8, best=0.1))
    for better in (12, 14, 16):
        save_weights(tmp_path, better, weights(better))
    state = newest_state(tmp_path)
    assert state is not None
    assert load_weights(tmp_path, state.best_step)["w"].tolist() == [8.0, 8.0]
    assert {path.name for path in tmp_path.glob("weights-*")} == {weights_file(tmp_path, step).name for step in (8, 16)}


def test_steps_of_another_precision_are_not_gone_on_with(tmp_path: Path) -> None:
    checkpoint(tmp_path, State("bf16", step=20))
    state = newest_state(tmp_path)
    assert state is not None
    refuse_other_precision(tmp_path, state, "bf16")
    with pytest.raises(InputError, match=r"20 steps were done in bf16, .* go on in fp32; go on where .* bf16, or delete the folder"):
        refuse_other_precision(tmp_path, state, "fp32")


def test_weights_that_no_checkpoint_names_go(tmp_path: Path) -> None:
    for step in (2, 4):
        save_weights(tmp_path, step, weights(step))
    checkpoint(tmp_path, State("fp32", step=5, best_step=4, best=0.2))
    save_weights(tmp_path, 6, weights(6))
    assert not weights_file(tmp_path, 2).exists()
    assert load_weights(tmp_path, 4)["w"].tolist() == [4.0, 4.0]
