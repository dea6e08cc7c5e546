"""kill -9 while an endpoint is asked: the next run asks for what no reply was kept of, and nothing shows the key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forked
from chat_server import ChatServer, chat_server

from raydense.data.generated import Generated
from raydense.storage import Artifact
from tests.inference_world import file_bytes, make_corpus

PASSAGES, SHARD, ANSWERED = 40, 10, 25
KEY = "sk-test-8812ee0b"


def answer(body: dict[str, Any]) -> str:
    words = body["messages"][0]["content"].split()
    return f"what of {words[-1]}\nhow many are {len(words)}"


def command(root: Path, output: str, server: ChatServer) -> list[str]:
    endpoint = ["--endpoint.url", server.url, "--endpoint.model", "small", "--endpoint.requests-at-once", "4"]
    words = ["generate", "--corpus", str(root / "corpus"), "--queries-each", "2", *endpoint, "--output", str(root / output)]
    return [sys.executable, "-m", "raydense", *words]


def kept(output: Path) -> int:
    """The replies that are in committed files or in the journal."""
    records = [json.loads(record.read_text()) for record in (output / ".work" / "commits").glob("generated-*.json")]
    lines = [path.read_bytes().count(b"\n") for path in (output / ".work" / "replies").glob("*.jsonl")]
    return sum(record["rows"] for record in records) + sum(lines)


def test_a_killed_run_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", PASSAGES, SHARD)
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    gate = threading.Semaphore(ANSWERED)
    with chat_server(answer, key=KEY, gate=gate) as server:
        with open(tmp_path / "printed", "wb") as printed:
            driver = subprocess.Popen(command(tmp_path, "killed", server), env=environment, stdout=printed, stderr=printed)
        try:
            end = time.monotonic() + 300
            while kept(tmp_path / "killed") < ANSWERED or len(server.asked) < ANSWERED + 4:
                assert driver.poll() is None, (tmp_path / "printed").read_text()
                assert time.monotonic() < end, "the replies did not come in 300 s"
                time.sleep(0.01)
            listed = Path(f"/proc/{driver.pid}/cmdline").read_bytes()
        finally:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
        assert b"generate" in listed
        assert KEY.encode() not in listed
        assert not (tmp_path / "killed" / "manifest.json").exists()
        assert len(list((tmp_path / "killed").glob("generated-*.arrow"))) == ANSWERED // SHARD
        before = len(server.asked)
        server.gate = None
        gate.release(PASSAGES)
        done = forked.run(command(tmp_path, "killed", server), env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(server.asked) - before == PASSAGES - ANSWERED
        assert f"continues after {ANSWERED} of {PASSAGES} passages" in done.stderr
        whole = forked.run(command(tmp_path, "whole", server), env=environment, capture_output=True, text=True)
        assert whole.returncode == 0, whole.stderr
    killed = Artifact.open(tmp_path / "killed")
    assert file_bytes(tmp_path / "killed") == file_bytes(tmp_path / "whole")
    assert killed.summary == Artifact.open(tmp_path / "whole").summary
    assert len(Generated(killed.path)) == PASSAGES
    assert KEY not in (tmp_path / "printed").read_text() + done.stderr + whole.stderr + done.stdout
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_ctrl_c_ends_at_once_with_one_line_and_keeps_the_replies(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", PASSAGES, SHARD)
    gate = threading.Semaphore(ANSWERED)
    with chat_server(answer, gate=gate) as server:
        with open(tmp_path / "printed", "wb") as printed:
            words = command(tmp_path, "stopped", server)
            driver = forked.Popen(words, stdout=printed, stderr=printed)
        try:
            end = time.monotonic() + 300
            while kept(tmp_path / "stopped") < ANSWERED or len(server.asked) < ANSWERED + 4:
                assert driver.poll() is None, (tmp_path / "printed").read_text()
                assert time.monotonic() < end, "the replies did not come in 300 s"
                time.sleep(0.01)
            driver.send_signal(signal.SIGINT)
            assert driver.wait(60) == 130
        finally:
            driver.kill()
            driver.wait()
            gate.release(PASSAGES)
    assert (tmp_path / "printed").read_text().strip() == "raydense: interrupted; the same command continues from here"
    assert kept(tmp_path / "stopped") == ANSWERED
