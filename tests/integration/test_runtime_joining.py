"""A command that joins a cluster which requires a token, as a Ray that a process starts for itself does."""

from __future__ import annotations

import sys
from pathlib import Path

import forked
import pytest

_FIX = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's\n"


@pytest.mark.parametrize("mode", [{}, {"RAY_AUTH_MODE": "token"}])
def test_without_the_token_of_the_cluster_the_line_names_it(joining: dict[str, str], tmp_path: Path, mode: dict[str, str]) -> None:
    """With RAY_AUTH_MODE unset, and with a mode that requires a token which is not set."""
    assert joining["RAY_AUTH_MODE"] == "token"
    kept = {name: value for name, value in joining.items() if not name.startswith("RAY_AUTH")}
    command = [sys.executable, "-m", "raydense", "pool", "status"]
    done = forked.run(command, env=kept | {"HOME": str(tmp_path)} | mode, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"raydense: {joining['RAY_ADDRESS']}: ")
    assert done.stderr.endswith(_FIX)
    assert "Traceback" not in done.stderr
