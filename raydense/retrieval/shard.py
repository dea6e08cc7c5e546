"""Opens a shard of an index for searching, in whatever process holds it."""

from __future__ import annotations

from typing import Any

from raydense.retrieval.search_params import index_params
from raydense.storage import Artifact


def open_shard(index: Artifact, shard: int, threads: int, search_params: str = "") -> Any:
    """The `FaissShard` or `Bm25Shard` of that number, its files memory-mapped where they can be. InputError if it does not take the parameters."""
    start, stop = index.summary["shards"][shard]
    if index.summary["kind"] == "bm25":
        from raydense.retrieval.bm25_shard import PARTS, Bm25Shard

        return Bm25Shard((index.file(f"shard-{shard:05d}.{part}.npy") for part in PARTS), start, stop, threads)
    from raydense.retrieval.faiss_shard import FaissShard

    path = index.file(f"shard-{shard:05d}.faiss")  # before the small file, which a full cache removes while a large one is fetched
    return FaissShard(str(path), start, threads, index_params(index, search_params), str(index.file("empty.faiss")))


def hits_stand_alone(index: Artifact) -> bool:
    """Whether a query's hits depend on neither the rest of its batch nor on k: an exact index, whose scores are rescored, or BM25."""
    return index.summary["kind"] == "bm25" or index.summary.get("largest_norm") is not None
