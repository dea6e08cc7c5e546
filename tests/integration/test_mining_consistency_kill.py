"""kill -9 in the middle of filter: the second run keeps the files that were committed and equals an undisturbed run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import forked
import numpy as np
import pytest

from raydense.data.generated import commit_queries
from raydense.mining.consistency import filter
from raydense.mining.settings import FilterSettings
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Draft, fingerprint_of
from tests.inference_world import file_bytes, make_corpus
from tests.killing import kill_once_committed

FILES, ROWS = 60, 25
FILTER = """
import json, sys
from raydense.mining.consistency import filter
from raydense.mining.settings import FilterSettings
filter(FilterSettings(**json.loads(sys.argv[1])))
"""
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filter-kill")
    texts = make_corpus(root / "corpus", FILES * ROWS, ROWS)
    rng = np.random.default_rng(3)
    draft = Draft.open(root / "generated", "generated", {"stage": "test"})
    for number in range(FILES):
        lists = [[" ".join(rng.choice(text.split(), 9)) for _ in range(6)] for text in texts[number * ROWS : (number + 1) * ROWS]]
        commit_queries(draft, f"generated-{number:05d}.arrow", number * ROWS, lists)
    draft.finish(len(texts), corpus=fingerprint_of(root / "corpus"))
    index(IndexSettings(kind="bm25", corpus=str(root / "corpus"), shards=2, output=str(root / "index")))
    return root


def committed(output: Path) -> dict[str, tuple[int, int]]:
    """The files that have a record; one written again has another inode and time."""
    records = [json.loads(record.read_text())["path"] for record in (output / ".work" / "commits").glob("generated-*.json")]
    return stamps(output, records)


def stamps(output: Path, names: list[str]) -> dict[str, tuple[int, int]]:
    stats = {name: (output / name).stat() for name in names}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def test_a_killed_filter_continues_and_equals_an_undisturbed_one(world: Path, joining: dict[str, str]) -> None:
    inputs = {name: str(world / name) for name in ("generated", "corpus", "index")}
    given = {"output": str(world / "killed"), "k": 40, **inputs}
    output = Path(given["output"])
    driver = forked.Popen([sys.executable, "-c", FILTER, json.dumps(given)], env=joining)
    kill_once_committed(driver, output / ".work" / "commits", "*-*.json", 3)
    kept = committed(output)
    assert 3 <= len(kept) < FILES
    assert not (output / "manifest.json").exists()
    continued = filter(FilterSettings(**given))
    assert kept.items() <= stamps(output, [file.path for file in continued.files]).items()
    whole = filter(FilterSettings(**{**given, "output": str(world / "whole")}))
    assert 0 < whole.summary["queries"] < whole.summary["read"] == FILES * ROWS * 6
    assert file_bytes(continued.path) == file_bytes(whole.path)
    assert (continued.fingerprint, continued.summary) == (whole.fingerprint, whole.summary)
