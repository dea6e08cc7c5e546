"""An index gets its shards from its size, whatever the machine; one that could not be searched here is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_embeddings

from raydense.errors import InputError
from raydense.retrieval import faiss_plan, sharding
from raydense.retrieval.index import index
from raydense.retrieval.settings import IndexSettings
from tests.damaged import damaged

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def given(tmp_path: Path) -> IndexSettings:
    write_embeddings(tmp_path / "vectors", np.random.default_rng(0).standard_normal((2_000, 16)).astype(np.float16))
    return IndexSettings(kind="faiss", embeddings=str(tmp_path / "vectors"), factory="IVF16,SQ8", output=str(tmp_path / "index"))


def test_a_repeated_run_keeps_the_shards(given: IndexSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SHARD_BYTES", 24_000)
    made = index(given)
    assert made.summary["shards"] == [[0, 1_000], [1_000, 2_000]]
    monkeypatch.setattr(sharding, "SHARD_BYTES", 12_000)
    assert index(given).fingerprint == made.fingerprint
    assert index(given.replaced({"shards": 2})).fingerprint == made.fingerprint
    with pytest.raises(InputError, match="shards: 2 -> 3"):
        index(given.replaced({"shards": 3}))
    (made.path / "shard-00001.faiss").unlink()
    again = index(given)
    assert again.fingerprint == made.fingerprint
    assert damaged(again) == []


def test_threads_change_no_byte(given: IndexSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for threads in (1, 4):
        monkeypatch.setattr(faiss_plan, "threads_each", lambda *asked, threads=threads: threads)
        made.append(index(given.replaced({"output": str(tmp_path / f"{threads}")})).fingerprint)
    assert made[0] == made[1]


def test_what_could_not_be_searched_is_refused_and_leaves_nothing(given: IndexSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"NodeID": "small", "Resources": {"memory": faiss_plan.PROCESS_BYTES + 30 * 2**20, "CPU": 2}}]
    monkeypatch.setattr(faiss_plan, "shard_nodes", lambda gpu: nodes)
    large = given.replaced({"shards": 3})
    with pytest.raises(InputError, match=r"^index: a search of an index IVF16,SQ8 of 2,000 x 16 in 3 shards needs .*--skip-memory-check"):
        index(large)
    assert not list(Path(given.output).glob("*.faiss"))
    assert len(index(large.replaced({"skip_memory_check": True})).summary["shards"]) == 3
