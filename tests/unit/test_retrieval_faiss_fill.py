"""Filling an index: the bytes of `index.add` with one thread, for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from raydense.retrieval.faiss_fill import MOST_ROWS, fill, has_work_for_threads, is_exact, part_of, pieces, train

D, CUTS = 32, [37_003, 4_100, 21]  # the first is filled in pieces
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
    """Of whole blocks; behind a transformation, which rounds by the vectors that it has at once, of their pieces."""
    rows = 5_000 if factory in GRAPHS else sum(CUTS)
    empty = trained(factory)
    added = faiss.clone_index(empty)
    for _, piece in pieces(blocks(rows)) if factory.startswith(("PCA", "RR")) else enumerate(blocks(rows)):
        added.add(piece.astype(np.float32))
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
    for start, block in pieces(blocks(rows)):
        part.survey(start, block.astype(np.float32))
    part.make_room()
    before = places()
    for start, block in pieces(blocks(rows)):
        part.append(start, part.prepare(start, block.astype(np.float32)))
    assert index.ntotal == rows
    assert places() == before


def test_a_thread_has_few_vectors_in_work() -> None:
    cut = list(pieces(blocks(sum(CUTS))))
    assert max(len(piece) for _, piece in cut) < MOST_ROWS
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in cut]), vectors())
    assert [start for start, _ in cut] == np.cumsum([0, *(len(piece) for _, piece in cut)])[:-1].tolist()


@pytest.mark.parametrize(
    ("factory", "several"),
    [
        ("SQ8", True),
        ("PCA16,IVF64,Flat", True),
        ("HNSW4", False),
        ("PCA16,HNSW4,RFlat", False),
        ("IVF64,RaBitQ,Refine(SQ8)", True),
        ("RQ2x4", False),
    ],
)
def test_threads_are_claimed_for_what_they_do(factory: str, several: bool) -> None:
    assert has_work_for_threads(faiss.index_factory(D, factory, faiss.METRIC_INNER_PRODUCT)) is several


TRAINED = ["IVF64,SQ8", "PQ2x4", "PCA16,Flat", "OPQ2_16,PQ2x4", "IVF64_HNSW8,Flat", "RaBitQ", "PCA16,IVF64,SQ8", "PCA16,IVF64,Flat,RFlat"]


@pytest.mark.parametrize("factory", TRAINED)
def test_a_quantiser_trained_by_more_threads_has_the_same_bytes(factory: str) -> None:
    slow = "OPQ" in factory
    made, rows = set(), 2_000 if slow else 20_000
    for threads in (1, 4) if slow else (1, 2, 4):
        index = faiss.index_factory(D, factory, faiss.METRIC_INNER_PRODUCT)
        train(index, vectors()[:rows].astype(np.float32), threads)
        made.add(faiss.serialize_index(index).tobytes())
    assert len(made) == 1
    faiss.omp_set_num_threads(1)
    if "PCA" not in factory:  # which is trained with a mean, see below
        index = faiss.index_factory(D, factory, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors()[:rows].astype(np.float32))
        assert made == {faiss.serialize_index(index).tobytes()}


@pytest.mark.parametrize("factory", ["PCA32,Flat", "PCAR32,Flat", "OPQ8_32,Flat", "RR32,Flat"])
def test_a_rotation_keeps_inner_products(factory: str) -> None:
    """FAISS's PCA moves the mean of vectors to the origin: inner products with passages are then others, each by its own amount."""
    passages = np.random.default_rng(5).normal(0.7, 1, (400, 32)).astype(np.float32)
    index = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    train(index, passages, 1)
    index = faiss.deserialize_index(faiss.serialize_index(index))
    index.add(passages)
    scores, rows = index.search(passages[:20], 10)
    exact = passages[:20] @ passages.T
    np.testing.assert_array_equal(rows, np.argsort(-exact, axis=1)[:, :10])
    np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), rtol=1e-4)
