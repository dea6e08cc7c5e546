"""The blocks that a search asks with are cut from the parts that are encoded together, whatever the size of either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray

from raydense.retrieval import query_vectors
from raydense.retrieval.settings import SearchSettings
from raydense.storage import Artifact, Draft

TOTAL, PART = 47, 10
POOL: Any = SimpleNamespace(actors=[], plan=SimpleNamespace(gpu=False))
GPU_POOL: Any = SimpleNamespace(actors=[], plan=SimpleNamespace(gpu=True))


@pytest.fixture
def index(tmp_path: Path) -> Artifact:
    return Draft.open(tmp_path / "index", "index", {}).finish(0, kind="faiss", dimension=1, model="print", shards=[{}, {}])


@pytest.mark.parametrize("block", [1, 7, 10, 16, 30, 100])
def test_blocks_are_the_rows_that_they_begin_at(index: Artifact, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def encode(stage: str, model: str, fingerprint: str, dimension: int, blocks: list[dict[str, Any]], *_: object) -> Iterator[Any]:
        for one in blocks:
            encoded.append(int(one["texts"][0]) // PART)
            yield np.array(one["texts"], np.float32)[:, None]

    monkeypatch.setattr(query_vectors, "encode_blocks", encode)
    monkeypatch.setattr(query_vectors, "QUERIES_A_FILE", PART)
    queries = pa.table({"text": [str(i) for i in range(TOTAL)]})
    settings = SearchSettings(index="i", queries="q", model="m", output="o", block=block)
    all_starts = list(range(0, TOTAL, block))
    for starts in (all_starts, all_starts[1::2], all_starts[-1:]):
        encoded.clear()
        found = list(query_vectors.encoded_blocks(settings, queries, index, starts, [POOL])) if starts else []
        wanted = [list(range(at, min(at + block, TOTAL))) for at in starts]
        assert [vectors[:, 0].astype(int).tolist() for vectors in found] == wanted
        assert encoded == sorted({row // PART for rows in wanted for row in rows}), "no other part is encoded"


@pytest.mark.parametrize(
    ("free", "pool", "given", "on_cpu"),
    [
        ([1.0], POOL, {}, False),
        ([1.0], POOL, {"queries_on_cpu": True}, True),
        ([], GPU_POOL, {}, True),
        ([0.5, 0.5], GPU_POOL, {}, True),
        ([0.0, 1.0], GPU_POOL, {}, False),
    ],
)
def test_queries_are_encoded_on_the_cpu_where_the_pool_leaves_no_gpu(
    index: Artifact, free: list[float], pool: Any, given: dict[str, Any], on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool holds them while it waits for the queries, also one that was running before, by whose name it is asked."""
    asked: list[object] = []

    def encode(*arguments: object) -> Iterator[Any]:
        asked.append(arguments[6])
        return iter(())

    monkeypatch.setattr(query_vectors, "encode_blocks", encode)
    monkeypatch.setattr(ray, "wait", lambda refs, num_returns: (refs, []))
    monkeypatch.setattr(query_vectors, "free_by_node", lambda: {str(node): {"GPU": gpus} for node, gpus in enumerate(free)})
    settings = SearchSettings(index="i", queries="q", model="m", output="o", **given)
    query_vectors.encoded_blocks(settings, pa.table({"text": ["a"]}), index, [0], [POOL, pool])
    assert asked == [on_cpu]
