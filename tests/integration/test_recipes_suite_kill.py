"""kill -9 between two sets of a suite: run again, it continues, and ends with the bytes of an undisturbed one."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import forked
import pytest
from beir_sets import make_set

from raydense.evaluation.settings import SuiteSettings
from raydense.recipes.suite import Suite, run_suite, write_tables


def finished(root: Path, output: Path) -> Suite:
    suite = Suite.read(SuiteSettings(suite=str(root), kind="bm25", k=10, metrics=["nDCG@10"], output=str(output)))
    assert run_suite(suite) == {}
    write_tables(suite, {})
    return suite


def checksums(folder: Path) -> dict[str, str]:
    """Of every file but those that hold times or paths: manifests, seconds, and the object with the reports' folders."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_killed_suite_goes_on(tmp_path: Path, joining: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    for seed, name in enumerate(("a", "b")):
        make_set(tmp_path / "sets" / name, seed)
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "raydense", "evaluate", "--suite", str(tmp_path / "sets"), "--kind", "bm25", "--k", "10"]
    with open(tmp_path / "log", "w") as log:
        process = forked.Popen(
            [*command, "--metrics", "nDCG@10", "--output", str(killed)], env=joining, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not (killed / "b" / "index").is_dir():
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    assert not (killed / "suite.json").exists()
    made = {path: path.stat().st_mtime_ns for path in killed.rglob("manifest.json")}
    assert killed / "a" / "report-test" / "manifest.json" in made

    capfd.readouterr()
    finished(tmp_path / "sets", killed)
    printed = capfd.readouterr().err
    assert "[1/2] a: done before" in printed
    assert "[2/2] b: data: done before" in printed
    assert {path: path.stat().st_mtime_ns for path in made} == made
    finished(tmp_path / "sets", tmp_path / "whole")
    assert checksums(killed) == checksums(tmp_path / "whole")
    assert not list(killed.rglob(".work"))
