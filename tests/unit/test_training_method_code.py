"""The code of a method outside raydense is a part of what its output is made from; raydense's own is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_data import TrainingData, make_training_data

from raydense.extensions.code_digest import code_of
from raydense.storage import provenance
from raydense.training.registry import built_in, load_method

BASE = """
from raydense.training.dual_encoder import DualEncoderMethod

class Base(DualEncoderMethod):
    def loss(self, outputs, batch):
        return self.list_scores(outputs).mean(), {}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("code"))


def test_an_edited_method_is_another_one_and_so_is_one_with_an_edited_base(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, own = tmp_path / "code_base.py", tmp_path / "code_own.py"
    base.write_text(BASE)
    mixin = tmp_path / "code_mixin.py"
    mixin.write_text("class Mixin:\n    weight = 1\n")
    own.write_text("from code_base import Base\nfrom code_mixin import Mixin\n\nclass Own(Mixin, Base):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def made_from(objective: str) -> dict:
        return provenance("train", data.settings(tmp_path / "o", objective=objective))

    first = made_from("code_own:Own")
    assert made_from("code_own:Own") == first
    own.write_text(own.read_text() + "    margin = 1\n")
    second = made_from("code_own:Own")
    base.write_text(BASE.replace(".mean()", ".sum()"))
    third = made_from("code_own:Own")
    mixin.write_text("class Mixin:\n    weight = 2\n")
    fourth = made_from("code_own:Own")
    assert len({one["method_code"] for one in (first, second, third, fourth)}) == 4
    assert {**first, "method_code": ""} == {**fourth, "method_code": ""}


def test_the_code_of_raydense_is_no_part(data: TrainingData, tmp_path: Path) -> None:
    assert provenance("train", data.settings(tmp_path / "o")).keys() == {"stage", "settings", "inputs"}
    assert not any(code_of(load_method(verb, name)) for verb in ("train", "pretrain") for name in built_in(verb))
