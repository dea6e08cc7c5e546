"""The query vectors of a search: given ones, or those that the retriever of the index makes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.inference.query_encoder import encode_blocks
from raydense.inference.settings import QUERIES_A_FILE
from raydense.inference.tokenising import Changes
from raydense.retrieval.kind import kind_of
from raydense.retrieval.settings import SearchSettings
from raydense.retrieval.vectors import Vectors
from raydense.runtime.ray_internals import free_by_node
from raydense.storage import Artifact, fingerprint_of, model_place

if TYPE_CHECKING:
    from raydense.retrieval.pool import SearchPool

Block = NDArray[np.float32]


def check_model(model: str | None, index: Artifact, prompt: Changes = ()) -> None:
    """InputError unless `model` is the retriever whose vectors `index` holds and has the `prompt`, or None for an index that is asked by texts."""
    kind = kind_of(index)
    if not kind.encoded:
        if model:
            raise InputError(f"a {kind.title} index needs no model", "model", "leave it out, or give an index of kind faiss")
        return
    if not model:
        raise InputError("missing", "model", "give the retriever that the embeddings of this index were made with")
    here, wanted = fingerprint_of(model_place(model)), index.summary["model"]
    if here != wanted or prompt:
        from raydense.models.model_kind import require_model  # only here: importing torch takes seconds

        require_model(model, scores=False, **dict(prompt))
    if here != wanted:
        what = f"is not the model of this index (fingerprint {here[:12]}, the embeddings have {wanted[:12]})"
        raise InputError(what, model, "give that model, or encode and index with this one")


def check_vectors(vectors: str, queries: str, index: Artifact) -> None:
    """InputError unless `vectors` are those of `queries`, made by the model whose vectors `index` holds, in its dimension."""
    kind = kind_of(index)
    if not kind.encoded:
        raise InputError(f"a {kind.title} index needs no vectors", "vectors", "leave them out, or give an index of kind faiss")
    of = Vectors(vectors, of="queries").artifact.summary
    if of["queries"] != fingerprint_of(queries):
        raise InputError("are of other queries", vectors, f"encode the queries in {queries} with the model of the index")
    for key, what in (("model", "were made by another model than the index's"), ("dimension", "are of another dimension than the index's")):
        if of[key] != index.summary[key]:
            raise InputError(
                f"{what} ({str(of[key])[:12]}, not {str(index.summary[key])[:12]})", vectors, "encode the queries as the passages"
            )


def encoded_blocks(
    settings: SearchSettings, queries: pa.Table, index: Artifact, starts: list[int], pools: list[SearchPool]
) -> Generator[Block, None, None]:
    """The vectors float32 [n, d] of the blocks of `queries` (query_id, text) that begin at `starts` (rising), as they are encoded.

    Queries are encoded in the parts of `encode --queries`, whatever the blocks of the search, so the vectors are the same.
    They are encoded on the CPU with `queries_on_cpu`, or if the `pools` of the search leave no GPU.
    """
    total, parts = len(queries), range(0, len(queries), QUERIES_A_FILE)
    ranges = [(at, min(at + settings.block, total)) for at in starts]
    needed = [p for p in parts if any(at < p + QUERIES_A_FILE and p < stop for at, stop in ranges)]
    blocks = [{"texts": queries["text"].slice(p, QUERIES_A_FILE).to_pylist()} for p in needed]
    summary = index.summary
    on_cpu = settings.queries_on_cpu or any(leaves_no_gpu(pool) for pool in pools if pool.plan.gpu)
    vectors = encode_blocks("search", str(settings.model), summary["model"], summary["dimension"], blocks, _texts, on_cpu, settings.prompt)
    return _recut(zip(needed, vectors, strict=True), ranges)


def leaves_no_gpu(pool: SearchPool) -> bool:
    """Whether nobody has a whole GPU left for encoding, as soon as the actors of a pool on GPUs have theirs."""
    import ray

    loaded = [actor.describe.remote() for replicas in pool.actors for actor in replicas]
    ray.wait(loaded, num_returns=len(loaded))  # not ray.get: one that is away starts again, and is called again by the search
    return all(node.get("GPU", 0) < 1 for node in free_by_node().values())


def _texts(block: pa.Table) -> list[str]:
    found: list[str] = block["texts"][0].as_py()
    return found


def _recut(parts: Iterator[tuple[int, Block]], ranges: list[tuple[int, int]]) -> Generator[Block, None, None]:
    """The rows of each range [start, stop) (rising), from parts that come with their first row."""
    first, part = next(parts)
    for at, stop in ranges:
        pieces = []
        while at < stop:
            while at >= first + len(part):
                first, part = next(parts)
            pieces.append(part[at - first : stop - first])
            at += len(pieces[-1])
        yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
