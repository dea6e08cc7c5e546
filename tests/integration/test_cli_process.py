"""The command line as a process of its own."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import psutil
import pytest
from warm_worker import own_ray_environment


def test_help_imports_nothing_heavy():
    code = (
        "import sys, raydense.cli; print([m for m in ('ray', 'torch', 'faiss', 'transformers', 'deepspeed', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_question_to_bm25_imports_no_model():
    code = "import sys, raydense.serving.retriever; print([m for m in ('torch', 'faiss', 'transformers', 'ray.serve') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


RECIPE = """
stages:
  data: {do: sample, passages: 1000, train_queries: 700, dev_queries: 40, test_queries: 60}
  words: {do: index, kind: bm25, corpus: $data/corpus, shards: 4}
  found: {do: search, index: $words, queries: $data/queries, block: 8}
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)], ids=["term", "terminal"])
def test_a_signal_between_trainings_is_one_line_and_the_command_continues(
    tmp_path: Path, joining: dict[str, str], number: signal.Signals
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "raydense", "run", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "out")]
    with forked.Popen(command, env=joining, stderr=subprocess.PIPE, text=True) as process:
        while not list((tmp_path / "out/found/.work/commits").glob("*.json")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(number)
        if number == signal.SIGHUP:  # as the shell and the kernel do
            process.send_signal(number)
        _, printed = process.communicate()
    assert process.returncode == 128 + number, printed
    assert printed.splitlines()[-1] == f"raydense: ended by {number.name}; the same command continues from here"
    assert "SIGTERM received" not in printed
    records = [json.loads(record.read_text()) for record in (tmp_path / "out/found/.work/commits").glob("*.json")]
    kept = {record["path"]: (tmp_path / "out/found" / record["path"]).stat().st_mtime_ns for record in records}
    assert kept
    again = forked.run(command, env=joining, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "words: done before" in again.stderr
    assert kept == {path: (tmp_path / "out/found" / path).stat().st_mtime_ns for path in kept}, "what was committed is made again"


def test_sigterm_while_ray_starts_is_the_same_line(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "raydense", "run", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "out")]
    with forked.Popen(command, env=own_ray_environment(), stderr=subprocess.PIPE, text=True) as process:
        while not any("gcs_server" in one.name() for one in psutil.Process(process.pid).children()):
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate()
    assert process.returncode == 143, printed
    assert printed.splitlines()[-1] == "raydense: ended by SIGTERM; the same command continues from here"


def test_work_goes_on_where_nobody_reads_its_progress() -> None:
    code = (
        "import os; from raydense.runtime.progress import Progress, say; reads, writes = os.pipe(); os.dup2(writes, 2); os.close(reads);"
        "say('one'); say('two'); Progress('encode', 2, 'passages').clear(); os.write(2, b'what a library prints'); print('done')"
    )
    done = forked.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_command_without_standard_error_works() -> None:
    code = (
        "import sys; sys.stderr = None; from raydense.runtime.progress import say, say_error; say('one'); say_error('two'); print('done')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "done\n"


def test_nohup_is_respected(tmp_path: Path) -> None:
    """What `raydense doctor` does is of no matter: it goes on after the signal that it is to ignore."""
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); import raydense.cli as cli;"
        "cli.app.main = lambda *_, **__: (os.kill(os.getpid(), signal.SIGHUP), print('went on')); cli.main(['doctor'])"
    )
    done = forked.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "went on\n")
