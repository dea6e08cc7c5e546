"""What the package exports: names that type checkers and the lazy import agree on, and settings that explain what is wrong with them."""

import ast
import pickle
from pathlib import Path

import pytest

import raydense as rd
from raydense import EncodeSettings, EvaluateSettings, InputError


def test_type_checkers_see_what_is_imported_when_used():
    tree = ast.parse(Path(rd.__file__).read_text())
    seen = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and str(node.module).startswith("raydense.")]
    assert {str(node.module): [alias.name for alias in node.names] for node in seen} == rd._HOMES
    assert sorted(rd.__all__) == rd.__all__ == sorted(rd._HOME_OF)
    assert set(rd.__all__) <= set(dir(rd))
    with pytest.raises(AttributeError, match="no attribute 'encod'"):
        _ = rd.encod


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modle": "m"}, "EncodeSettings.modle: unknown key; did you mean 'model'?"),
        ({"model": "m", "corpus": "c"}, "EncodeSettings.output: missing; give it: the folder to make; it appears whole or not at all"),
        ({"model": "m", "corpus": "c", "output": "o", "dtype": "f8"}, "EncodeSettings.dtype: input should be 'float16' or 'float32'"),
        ({"model": 5, "corpus": "c", "output": "o"}, "EncodeSettings.model: input should be a valid string (given: 5)"),
    ],
)
def test_a_wrong_setting_is_one_line(given, message):
    with pytest.raises(InputError) as caught:
        EncodeSettings(**given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_wrong_setting_of_a_group_is_one_line():
    with pytest.raises(InputError, match=r"^EvaluateSettings\.answers\.mach: unknown key; did you mean 'answers\.match'\?$"):
        EvaluateSettings(run="a", output="o", answers={"mach": "regex"})
    with pytest.raises(InputError, match=r"^AnswerSettings\.mach: unknown key"):
        rd.AnswerSettings(mach="regex")


def test_settings_show_what_was_given(tmp_path):
    given = {"run": [tmp_path, f"b={tmp_path}"], "queries": "q", "corpus": "c", "answers": rd.AnswerSettings(k=[1]), "output": "o"}
    settings = EvaluateSettings(**given)
    shown = f"output='o', run=['{tmp_path}', 'b={tmp_path}'], queries='q', corpus='c', answers=AnswerSettings(k=[1])"
    assert repr(settings) == f"EvaluateSettings({shown})"
    assert pickle.loads(pickle.dumps(settings)) == settings
