"""The Python API: every exported name works in a user's script, which a strict type check passes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import user_script

import raydense as rd

ROOT = Path(__file__).parents[2]
SCRIPT = Path(user_script.__file__)
# without the types of the large packages below, whose check takes 40 s
STRICT = """[mypy]
strict = true
[mypy-torch.*,transformers.*,ray.*,deepspeed.*,pandas.*,scipy.*]
follow_imports = skip
"""


def test_a_users_script_runs(tmp_path: Path, ray_cluster: None, capsys: pytest.CaptureFixture[str]) -> None:
    user_script.main(tmp_path)
    assert "modle: unknown key; did you mean 'model'?" in capsys.readouterr().out


def test_the_script_uses_every_public_name() -> None:
    used = {node.attr for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, ast.Attribute)}
    assert set(rd.__all__) <= used


def test_a_strict_type_check_passes_the_script_and_no_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import raydense as rd\n\nrd.encode(rd.EncodeSettings(modle='m'))\nrd.encod\nrd.PassageStore(5)\n")
    (tmp_path / "mypy.ini").write_text(STRICT)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(ROOT / ".mypy_cache/user-script")]
    environment = {**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path / "wrong.py")], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    faults = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [fault.partition(": ")[0] for fault in faults] == ["wrong.py:3", "wrong.py:4", "wrong.py:5"], done.stdout + done.stderr


def test_settings_import_nothing_heavy() -> None:
    script = (
        "import sys, raydense as rd; names = [n for n in rd.__all__ if n.endswith('Settings')]; [getattr(rd, n) for n in names]; "
        "import raydense.serving.settings, raydense.cli.flags; print(sorted({'numpy', 'torch', 'ray', 'faiss', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
