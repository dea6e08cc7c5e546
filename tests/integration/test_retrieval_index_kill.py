"""kill -9 in the middle of indexing: the second run keeps what was committed, finishes, and equals an undisturbed one."""

import json
import sys
from pathlib import Path

import forked
import numpy as np
from embeddings import write_corpus, write_embeddings
from killing import kill_once_committed

from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Artifact

SHARDS = 40
_JOB = """
import json, sys
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
index(IndexSettings.read(json.loads(sys.argv[1])))
"""


def commits(folder: Path) -> dict[str, int]:
    """The committed files of an unfinished artifact, and when each was written."""
    records = [json.loads(p.read_text()) for p in (folder / ".work" / "commits").glob("*.json")]
    return {r["path"]: (folder / r["path"]).stat().st_mtime_ns for r in records}


def kill_when_half_done(settings: dict[str, object], files: int, environment: dict[str, str]) -> dict[str, int]:
    """Start the job, watch the commits, and kill -9 its driver, with which its tasks end, once `files` are there."""
    job = forked.Popen([sys.executable, "-c", _JOB, json.dumps(settings)], env=environment)
    folder = Path(str(settings["output"]))
    kill_once_committed(job, folder / ".work" / "commits", "*.json", files)
    return commits(folder)


def test_killed_indexing_goes_on(tmp_path: Path, joining: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    write_embeddings(tmp_path / "vectors", rng.standard_normal((4_000, 16)).astype(np.float16), files=3)
    write_corpus(tmp_path / "corpus", [" ".join(f"w{i}" for i in rng.zipf(1.3, 30) % 5_000) for _ in range(4_000)], shard_rows=1_000)
    settings: dict[str, dict[str, object]] = {
        "faiss": {
            "kind": "faiss",
            "embeddings": str(tmp_path / "vectors"),
            "factory": "IVF16,SQ8",
            "shards": SHARDS,
            "skip_memory_check": True,
        },
        "bm25": {"kind": "bm25", "corpus": str(tmp_path / "corpus"), "shards": SHARDS},
    }
    outputs = {
        kind: [{**given, "output": str(tmp_path / f"{kind}-{run}")} for run in ("killed", "whole")] for kind, given in settings.items()
    }
    kept = {kind: kill_when_half_done(killed, 8, joining) for kind, (killed, _) in outputs.items()}
    assert not list(tmp_path.glob("*-killed/manifest.json"))
    for each in (each for pair in outputs.values() for each in pair):
        index(IndexSettings.read(each))
    for kind, earlier in kept.items():
        killed, whole = Artifact.open(tmp_path / f"{kind}-killed"), Artifact.open(tmp_path / f"{kind}-whole")
        assert killed.fingerprint == whole.fingerprint
        assert killed.summary == whole.summary
        assert [f.sha256 for f in killed.files] == [f.sha256 for f in whole.files]
        finished = finished_shards(earlier)
        assert finished
        assert {path: (killed.path / path).stat().st_mtime_ns for path in finished} == finished


def finished_shards(files: dict[str, int]) -> dict[str, int]:
    """Of some committed files, those of shards that were complete: what a second run must not touch."""
    complete = {path[:11] for path in files if path.endswith((".faiss", ".starts.npy"))}
    return {path: at for path, at in files.items() if path[:11] in complete}
