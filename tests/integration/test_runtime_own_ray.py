"""A command whose own Ray loses its node ends, with one line; the same command continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import psutil

LINE = "Ray: its node on this machine has ended by itself"
WAITS = """
import sys
import time
import ray
from raydense.cli import main
from raydense.recipes.stage import Verb
from raydense.runtime.session import ensure_ray

def wait(verb, settings):
    ensure_ray()
    print("waits", flush=True)
    while True:  # as a sweep does, without end
        ray.wait([ray.remote(lambda: time.sleep(1000)).remote()], timeout=1)

Verb.run = wait
main(["sample", "--output", sys.argv[1]])
"""
CATCHES = """
import time
import ray
from raydense.runtime.session import ensure_ray

ensure_ray()
print("waits", flush=True)
try:
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    print("was interrupted", flush=True)
"""


def test_a_command_ends_with_its_ray(tmp_path: Path) -> None:
    code, _, errors = ended(WAITS, str(tmp_path / "out"))
    assert code == 1
    assert errors.count(LINE) == 1
    assert "Traceback" not in errors


def test_another_program_is_interrupted(tmp_path: Path) -> None:
    code, output, errors = ended(CATCHES)
    assert code == 0
    assert output.endswith("was interrupted\n")
    assert errors.count(LINE) == 1


def ended(script: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, output and errors of a program whose raylet is killed once it waits."""
    alone = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    program = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=PIPE, stderr=PIPE, text=True, env=alone)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "waits\n"
        raylets = [child for child in psutil.Process(program.pid).children(recursive=True) if child.name() == "raylet"]
        assert raylets
        for child in raylets:
            child.kill()
        output, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    return program.returncode, output, errors
