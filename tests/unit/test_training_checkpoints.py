"""What lies beside the checkpoints: the best weights of whoever continues from one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from raydense.errors import InputError
from raydense.training.checkpoints import (
    RUN,
    State,
    keep_registered,
    load_weights,
    mend_registered,
    newest_state,
    refuse_other_precision,
    save_weights,
    weights_file,
)


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


def test_a_checkpoint_that_a_kill_cut_short_is_none(tmp_path: Path) -> None:
    checkpoint(tmp_path, State("fp32", step=5))
    checkpoint(tmp_path, State("fp32", step=10))
    (tmp_path / RUN / "checkpoint_10" / "state.json").write_text("")
    assert newest_state(tmp_path) == State("fp32", step=5)


def test_a_list_of_checkpoints_that_a_kill_cut_short_is_the_one_before_it(tmp_path: Path) -> None:
    """Ray Train writes its list in place, and refuses a torn one, or one that names what is gone, for ever."""
    checkpoint(tmp_path, State("fp32", step=5))
    listed = tmp_path / RUN / "checkpoint_manager_snapshot.json"
    whole = json.dumps({"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_5"}]})
    listed.write_text(whole)
    keep_registered(tmp_path)
    for torn in ("", whole[:-10], whole.replace("5", "9")):
        listed.write_text(torn)
        keep_registered(tmp_path)
        mend_registered(tmp_path)
        assert listed.read_text() == whole
    (tmp_path / RUN / "checkpoint_5").rename(tmp_path / RUN / "checkpoint_6")
    mend_registered(tmp_path)
    assert not listed.exists(), "with no list left that is true, it begins anew"
