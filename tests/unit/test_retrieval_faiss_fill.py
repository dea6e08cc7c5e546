"""Filling an index: the bytes of `index.add` with one thread, for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from raydense.retrieval.faiss_fill import fill, is_exact, part_of, train

D, CUTS = 32, [37_003, 4_100, 21]  # the first is filled in pieces, where that changes no byte
FACTORIES = ["Flat", "SQfp16", "SQ8", "IVF64,Flat", "IVF64,SQ8", "IVF64,RaBitQ", "IVF64_HNSW8,Flat", "PQ2x4", "IVF64,PQ2x4"]
FACTORIES += ["RaBitQ", "RaBitQ4", "RaBitQ,Refine(SQ8)", "SQ8,RFlat", "PCA16,Flat", "RR32,RaBitQ", "PQ4x4fs"]
FACTORIES += ["IVF64,RaBitQ,Refine(SQfp16)", "IVF64,PQ4x4fs", "RQ2x4", "Flat,RFlat", "PCA16,IVF64,Flat,RFlat"]
GRAPHS = ["HNSW4", "HNSW4_SQ8", "IVF64_HNSW8,Flat"]


@cache
def vectors() -> NDArray[np.float16]:
    return np.random.default_rng(0).standard_normal((sum(CUTS), D)).astype(np.float16)


def blocks(rows: int) -> Iterator[NDArray[np.float16]]:
    yield from np.split(vectors()[:rows], [cut for cut in np.cumsum(CUTS) if cut < rows])


def trained(factory: str) -> faiss.Index:
    index = faiss.index_factory(D, factory, faiss.METRIC_INNER_PRODUCT)
    faiss.omp_set_num_threads(1)
    index.train(vectors()[:2_000].astype(np.float32))
    return index


@pytest.mark.parametrize("factory", [*FACTORIES, *GRAPHS])
def test_any_number_of_threads_gives_the_bytes_of_an_add(factory: str) -> None:
    rows = 5_000 if factory in GRAPHS else sum(CUTS)
    empty = trained(factory)
    added = faiss.clone_index(empty)
    for block in blocks(rows):
        added.add(block.astype(np.float32))
    expected = faiss.serialize_index(added).tobytes()
    norm = np.linalg.norm(added.reconstruct_n(0, rows), axis=1).max() if is_exact(added) else None
    for threads in (1, 2, 4):
        index = faiss.clone_index(empty)
        largest = fill(index, rows, lambda: blocks(rows), threads)
        assert faiss.serialize_index(index).tobytes() == expected, threads
        assert largest == pytest.approx(norm)


@pytest.mark.parametrize("factory", ["HNSW4", "HNSW4_SQ8", "IVF64,SQ8", "RQ2x4"])
def test_an_index_has_its_memory_before_it_is_filled(factory: str) -> None:
    def places() -> list[int]:
        if isinstance(index, faiss.IndexIVF):
            return [int(get(number)) for number in range(index.nlist) for get in (index.invlists.get_codes, index.invlists.get_ids)]
        graph = [int(index.hnsw.neighbors.data())] if isinstance(index, faiss.IndexHNSW) else []
        return [*graph, int((faiss.downcast_index(index.storage) if graph else index).codes.data())]

    rows, index = 5_000, trained(factory)
    part = part_of(index, rows, 1)
    for start, block in part.cut(blocks(rows)):
        part.survey(start, block.astype(np.float32))
    part.make_room()
    before = places()
    for start, block in part.cut(blocks(rows)):
        part.append(start, part.prepare(start, block.astype(np.float32)))
    assert index.ntotal == rows
    assert places() == before


@pytest.mark.parametrize("factory", ["IVF64,SQ8", "PQ2x4", "PCA16,Flat", "OPQ2_16,PQ2x4", "IVF64_HNSW8,Flat", "RaBitQ"])
def test_a_quantiser_trained_by_more_threads_has_the_same_bytes(factory: str) -> None:
    made, rows = set(), 2_000 if "OPQ" in factory else 20_000
    for threads in (1, 2, 4):
        index = faiss.index_factory(D, factory, faiss.METRIC_INNER_PRODUCT)
        train(index, vectors()[:rows].astype(np.float32), threads)
        made.add(faiss.serialize_index(index).tobytes())
    assert len(made) == 1
