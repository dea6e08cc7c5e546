"""kill -9 of a real process in the middle of committing: what was committed stays, the rest is made again, the result is the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

from raydense.errors import InputError
from raydense.storage import Artifact, Draft

SCRIPT = """
import sys
from raydense.storage import Draft
draft = Draft.open(sys.argv[1], "run", {"of": 1})
skipped = draft.committed()
print("skips", len(skipped), flush=True)
def write(path, number):
    with open(path, "w") as stream:
        for line in range(400):
            stream.write(f"{number} {line}" * 100)
for number in range(int(sys.argv[2])):
    name = f"part-{number:04d}.txt"
    if name not in skipped:
        draft.commit(name, lambda path: write(path, number), 400)
        print(name, flush=True)
draft.finish(400 * int(sys.argv[2]))
"""


def start(folder: Path, parts: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), str(parts)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("after", [1, 3, 7])
def test_killed_while_committing(tmp_path: Path, after: int) -> None:
    parts = 40
    process = start(tmp_path / "x", parts)
    assert process.stdout is not None
    for _ in range(1 + after):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    with pytest.raises(InputError, match="unfinished"):
        Artifact.open(tmp_path / "x")
    survived = Draft.open(tmp_path / "x", "run", {"of": 1})
    kept = survived.committed()
    assert after <= len(kept) < parts
    for path, file in kept.items():
        assert (tmp_path / "x" / path).stat().st_size == file.bytes
    times = {path: (tmp_path / "x" / path).stat().st_mtime_ns for path in kept}
    survived.close()

    again = start(tmp_path / "x", parts)
    assert again.communicate()[0].splitlines()[0] == f"skips {len(kept)}"
    assert again.returncode == 0
    assert {path: (tmp_path / "x" / path).stat().st_mtime_ns for path in kept} == times, "what was committed is not made again"
    assert start(tmp_path / "y", parts).wait() == 0
    assert Artifact.open(tmp_path / "x").fingerprint == Artifact.open(tmp_path / "y").fingerprint
    assert not (tmp_path / "x" / ".work").exists()


def test_a_living_writer_locks_and_a_dead_one_does_not(tmp_path: Path) -> None:
    process = start(tmp_path / "x", 100_000)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(InputError, match="another process is writing here"):
        Draft.open(tmp_path / "x", "run", {"of": 1})
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert Draft.open(tmp_path / "x", "run", {"of": 1}).done is None


def test_import_killed_anywhere_gives_the_same_data_set(tmp_path: Path) -> None:
    source = tmp_path / "beir"
    (source / "qrels").mkdir(parents=True)
    (source / "corpus.jsonl").write_text("".join(f'{{"_id": "p{i}", "title": "", "text": "text {i}"}}\n' for i in range(60_000)))
    (source / "queries.jsonl").write_text("".join(f'{{"_id": "q{i}", "text": "query {i}"}}\n' for i in range(2_000)))
    pairs = "".join(f"q{i}\tp{i * 7}\t1\n" for i in range(2_000))
    (source / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + pairs)
    script = (
        "import sys; from raydense.data.importing import import_dataset; from raydense.data.settings import ImportSettings\n"
        "import_dataset(ImportSettings(format='beir', input=sys.argv[1], output=sys.argv[2], shard_rows=1000))"
    )

    def run(output: str) -> subprocess.Popen[bytes]:
        return forked.Popen([sys.executable, "-c", script, str(source), str(tmp_path / output)], stderr=subprocess.DEVNULL)

    process = run("killed")
    first, deadline = tmp_path / "killed" / "corpus" / "corpus-00003.arrow", time.monotonic() + 120
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(InputError, match="unfinished"):
        Artifact.open(tmp_path / "killed")
    assert run("killed").wait() == 0
    assert run("whole").wait() == 0
    parts = [Artifact.open(tmp_path / name).summary["parts"] for name in ("killed", "whole")]
    assert parts[0] == parts[1]
    assert set(parts[0]) == {"corpus", "queries", "qrels/test"}
