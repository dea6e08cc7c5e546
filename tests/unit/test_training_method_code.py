"""The code of a method outside raydense is a part of what its output is made from; raydense's own is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from training_data import TrainingData, make_training_data

from raydense.extensions.code_digest import code_of
from raydense.storage import digest_of, provenance
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


@pytest.mark.parametrize("within", ["", "own_package."])
def test_an_edit_of_what_a_method_imports_from_its_folder_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: str) -> None:
    """Also of what a function of it imports, which the process may not have imported, and of what that imports."""
    monkeypatch.syspath_prepend(str(tmp_path))
    stem = f"code_{'of_package' if within else 'of_folder'}"
    folder = tmp_path / within.rstrip(".")
    folder.mkdir(exist_ok=True)
    near = "." if within else ""
    files = {name: folder / f"{stem}_{name}.py" for name in ("method", "model", "layers", "other")}
    files["method"].write_text(
        f"import torch\nfrom raydense.settings import setting\nimport {within}{stem}_method\n{BASE}"
        f"    def kind(self):\n        from {near}{stem}_model import Model\n        return Model\n"
    )
    files["model"].write_text(f"import {within}{stem}_layers as layers, no_such_module\nModel = layers.Layer\n")
    files["layers"].write_text("import json\nclass Layer:\n    pass\n")
    files["other"].write_text("x = 1\n")
    method = load_method("train", f"{within}{stem}_method:Base")
    alone = digest_of([files["method"].read_text()])
    found = {name: (edit(file), code_of(method))[1] for name, file in files.items() if name != "method"}
    assert alone not in found.values()
    assert found["model"] != found["layers"]
    assert found["other"] == found["layers"]  # the edit before it was the last that counts
    assert not any(f"{within}{stem}_{name}" in sys.modules for name in ("model", "layers", "other"))


def edit(file: Path) -> None:
    file.write_text(file.read_text() + "# edited\n")


def test_a_method_that_imports_nothing_of_its_folder_keeps_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are the packages read between which an installed method lies."""
    monkeypatch.syspath_prepend(str(tmp_path))
    own = tmp_path / "code_alone.py"
    own.write_text(f"import code_neighbour\n{BASE}")
    (tmp_path / "code_neighbour.py").write_text("x = 1\n")
    method = load_method("train", "code_alone:Base")
    assert code_of(method) != digest_of([own.read_text()])
    (tmp_path / "other-1.0.dist-info").mkdir()
    assert code_of(method) == digest_of([own.read_text()])
    own.write_text(BASE)
    assert code_of(method) == digest_of([BASE])
