"""A tiny encoder made in another process, with other hash seeds and threads, is the same to the byte."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from raydense.models.tiny import make_tiny_encoder
make_tiny_encoder(json.load(sys.stdin), sys.argv[1], seed=3)
"""


def digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_another_process_writes_the_same_bytes(tiny_folder, texts, tmp_path):
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "m")], input=json.dumps(texts), text=True, check=True, env=environment, timeout=120
    )
    assert digests(tmp_path / "m") == digests(tiny_folder)
