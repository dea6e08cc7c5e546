"""A method given as `package.module:Class`: what is wrong with the name, and what is wrong in the module, is one line."""

import re
from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.training.registry import built_in_methods, load_method

OF = "from raydense.training.dual_encoder import DualEncoderMethod\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's modules."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("lacks_class", "x = 1", "objective: lacks_class has no Mine; give package.module:Class"),
        ("other_class", "class Mine: pass", "objective: other_class:Mine is no raydense.training.method.Method"),
        ("no_loss", f"{OF}class Mine(DualEncoderMethod): pass", "no_loss:Mine: it has no loss; write it"),
        (
            "no_base",
            f"{OF}class Mine(DualEncoderMethod):\n    class Settings:\n        margin: float = 1.0\n    def loss(self, outputs, batch): ...",
            "no_base:Mine: its Settings are not those of a method; derive them",
        ),
        (
            "no_type",
            f"from __future__ import annotations\n{OF}class Mine(DualEncoderMethod):\n    class Settings(DualEncoderMethod.Settings):\n"
            "        margin: Unknown = 1.0\n    def loss(self, outputs, batch): ...",
            "no_type:Mine.Settings: .*name 'Unknown' is not defined.*; define it in the module",
        ),
        (
            "other_type",
            f"{OF}class Mine(DualEncoderMethod):\n    class Settings(DualEncoderMethod.Settings):\n        batch_size: str = 'x'\n"
            "    def loss(self, outputs, batch): ...",
            r"other_type:Mine.Settings: batch_size is str, and int in DualEncoderMethod.Settings; give it that type",
        ),
        (
            "taken",
            f"from raydense.training.method import method\n{OF}@method('retriever')\nclass Mine(DualEncoderMethod):\n"
            "    def loss(self, outputs, batch): ...",
            "taken.Mine: retriever is a method of raydense; give it another name",
        ),
    ],
)
def test_a_wrong_class_is_refused(folder: Path, name: str, content: str, message: str) -> None:
    (folder / f"{name}.py").write_text(content)
    with pytest.raises(InputError, match=f"^{message}"):
        load_method("train", f"{name}:Mine")


def test_a_setting_may_take_less_than_in_the_base(folder: Path) -> None:
    (folder / "narrower.py").write_text(
        f"from typing import Literal\n{OF}class Mine(DualEncoderMethod):\n    class Settings(DualEncoderMethod.Settings):\n"
        "        temperature: float = 0.1\n        optimizer: Literal['adamw'] = 'adamw'\n        lr: float = 1e-3\n        margin: str = 'new'\n"
        "    def loss(self, outputs, batch): ..."
    )
    assert load_method("train", "narrower:Mine").Settings.model_fields["temperature"].default == 0.1


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_a_method_may_derive_from_each_of_raydense(folder: Path, verb: str) -> None:
    for number, one in enumerate(built_in_methods(verb)):
        (folder / f"derived_{verb}_{number}.py").write_text(
            f"from {one.__module__} import {one.__name__}\nclass Mine({one.__name__}):\n    pass\n"
        )
        assert load_method(verb, f"derived_{verb}_{number}:Mine").Settings.verb == verb


@pytest.mark.parametrize("name", [":Mine", ".lacks:Mine", "raydense.training.methods.kl:", ":"])
def test_half_a_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"^--objective: no method {name!r}; give package.module:Class$"):
        load_method("train", name, "--objective")


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("x = 1\ndef x(:\n    pass\n", 2, "SyntaxError: invalid syntax"),
        ("import math\ntau = math.squrt(2)\n", 2, "AttributeError: module 'math' has no attribute 'squrt'"),
        ("from raydense.training.method import nothing_here\n", 1, "ImportError: cannot import name 'nothing_here' from"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: Expecting property name"),
        ("import no_such_package\n", 1, "no module 'no_such_package'; install its package"),
        ("import raydense.training.methods.nope\n", 1, "no module 'raydense.training.methods.nope'"),
        (
            f"{OF}class Mine(DualEncoderMethod):\n    class Settings(DualEncoderMethod.Settings):\n        alpha = 3\n",
            3,
            "PydanticUserError: A non-annotated attribute was detected: `alpha = 3`",
        ),
    ],
)
@pytest.mark.parametrize("helper", [False, True])
def test_a_fault_in_a_module_is_named_by_its_line(
    folder: Path, request: pytest.FixtureRequest, content: str, line: int, message: str, helper: bool
) -> None:
    name = f"faulty_{abs(hash(request.node.name))}"
    (folder / f"{name}.py").write_text(content)
    (folder / f"from_{name}.py").write_text(f"import os\nimport {name}\n")
    with pytest.raises(InputError, match=f"^{re.escape(f'{folder}/{name}.py:{line}: {message}')}"):
        load_method("train", f"{'from_' * helper}{name}:Mine")
