"""A method given as `package.module:Class`: what is wrong with the name, and what is wrong in the module."""

from pathlib import Path

import pytest

from raydense.errors import InputError
from raydense.training.registry import load_method


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("lacks_class", "x = 1", "objective: lacks_class has no Mine; give package.module:Class"),
        ("lacks_package", "import no_such_package", "objective: no module 'no_such_package'; install its package"),
        ("other_class", "class Mine: pass", "objective: other_class:Mine is no raydense.training.method.Method"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, message: str) -> None:
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=f"^{message}"):
        load_method("train", f"{name}:Mine")


def test_an_error_of_the_module_shows_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "misspelt.py").write_text("import math\ntau = math.squrt(2)\nclass Mine: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AttributeError, match="squrt"):
        load_method("train", "misspelt:Mine")
