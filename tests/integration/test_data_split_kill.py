"""kill -9 in the middle of splitting: the folder is no artifact then, and the second run gives the bytes of an undisturbed one, without cutting again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pyarrow as pa
import pytest

import raydense.inference.split as splitting
from raydense.data.store import CorpusWriter
from raydense.errors import InputError
from raydense.inference.settings import SplitSettings
from raydense.inference.split import split
from raydense.storage import Artifact, Draft

DOCUMENTS = 20_000
SPLIT = """
import sys
from raydense.inference.split import split
from raydense.inference.settings import SplitSettings
split(SplitSettings(corpus=sys.argv[1], unit="words", length=5, shard_rows=1_000, output=sys.argv[2]))
"""


def test_a_killed_split_run_again_equals_an_undisturbed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {"test": "corpus"}), 5_000)
    ids = [f"d{i}" for i in range(DOCUMENTS)]
    writer.add(pa.table({"passage_id": ids, "title": [""] * DOCUMENTS, "text": [f"{i} and some more words of it " * 5 for i in ids]}))
    corpus = str(writer.finish().path)
    output = tmp_path / "killed"
    process = forked.Popen([sys.executable, "-c", SPLIT, corpus, str(output)], stderr=subprocess.DEVNULL)
    commits = output / ".work" / "commits"
    while process.poll() is None and (not commits.is_dir() or len(list(commits.glob("*.json"))) < 3):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    with pytest.raises(InputError, match="unfinished"):
        Artifact.open(output)
    values = {"corpus": corpus, "unit": "words", "length": 5, "shard_rows": 1_000}
    cut, seen = splitting._cut_part, []
    monkeypatch.setattr(splitting, "_cut_part", lambda *call: seen.append(call) or cut(*call))
    again = split(SplitSettings(**values, output=str(output)))
    assert seen == [], "it wrote passages when it was killed: all documents were cut"
    undisturbed = split(SplitSettings(**values, output=str(tmp_path / "undisturbed")))
    assert len(seen) == 3
    assert again.fingerprint == undisturbed.fingerprint
    assert again.rows == DOCUMENTS * 7
