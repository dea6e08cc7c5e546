"""Limits of the operating system while a process writes: no permission, a full disk, a file larger than a file may be."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from raydense.storage import Draft


def test_a_read_only_folder_is_an_error_with_a_fix() -> None:
    script = (
        "import os, sys\n"
        "from raydense.storage import Draft; from raydense.errors import fixable\n"
        "if os.getuid() == 0: os.setuid(65534)\n"  # root may write anywhere
        "try: Draft.open(sys.argv[1] + '/x', 'run', {})\n"
        "except OSError as error: print(*fixable(error))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        run = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True)
        assert run.stdout == f"2 {folder}/x: permission denied; give another path, or yourself the right to read and write it\n", run.stderr
        assert not os.listdir(folder)


def test_disk_full_keeps_what_was_committed(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys\n"
        "from raydense.storage import Draft\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "draft = Draft.open(sys.argv[1], 'run', {})\n"
        "draft.commit('small.bin', lambda p: p.write_bytes(b'x' * 1000), 1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try: draft.commit('large.bin', lambda p: p.write_bytes(b'x' * 100_000), 1)\n"
        "except OSError as error: print(error.errno)\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=True)
    assert int(run.stdout) == errno.EFBIG
    draft = Draft.open(tmp_path / "x", "run", {})
    assert list(draft.committed()) == ["small.bin"]
    assert not list((tmp_path / "x").rglob("large.bin"))


def test_a_file_over_the_limit_is_1_and_one_line(tmp_path):
    script = (
        "import pathlib, resource, signal, sys\n"
        "from raydense.errors import fixable\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))\n"
        "try: pathlib.Path(sys.argv[1]).write_bytes(b'x' * 2_000)\n"
        "except OSError as error: print(*fixable(error))\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path / "f")], capture_output=True, text=True, check=True)
    expected = "larger than a file may be here; raise the limit (ulimit -f) and run again, what was committed is kept"
    assert run.stdout == f"1 output: {expected}\n"
