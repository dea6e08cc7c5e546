"""What an index is expected to take, compared with the file that FAISS writes."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from raydense.errors import InputError
from raydense.retrieval.faiss_size import index_of, least_trained, size_of

ROWS, DIMENSION = 20_000, 64
# np: no polysemous codes, whose training takes seconds and which change no size
FACTORIES = ["Flat", "SQfp16", "SQ8", "SQ4", "IVF64,Flat", "IVF64,SQfp16", "IVF64,SQ8", "IVF64_HNSW16,Flat", "PQ16x4np", "IVF64,PQ16x4np"]
FACTORIES += ["PQ16x4fs", "IVF64,PQ16x4fs", "RaBitQ", "RaBitQ4", "IVF64,RaBitQ", "RaBitQ,Refine(SQ8)", "RaBitQ,Refine(SQfp16)"]
FACTORIES += ["SQ8,RFlat", "HNSW16", "HNSW16_SQ8", "PCA32,Flat", "RR64,RaBitQ", "IVF64,RaBitQ,Refine(SQ8)"]


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_has_the_size_that_was_expected(factory: str) -> None:
    rows = ROWS // 4 if factory.startswith("HNSW") else ROWS  # a graph takes seconds
    vectors = np.random.default_rng(0).standard_normal((rows, DIMENSION)).astype(np.float32)
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:1_000])
    index.add(vectors)
    assert size_of(factory, DIMENSION).of(rows) == pytest.approx(len(faiss.serialize_index(index)), rel=0.03)


def test_a_factory_that_faiss_does_not_know() -> None:
    with pytest.raises(InputError, match="FAISS cannot make 'Flatt'"):
        size_of("Flatt", DIMENSION)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("NSG16", "FAISS fills 'NSG16' only at once.*use HNSW"),
        ("PCA32,NSG16", "only at once"),
        ("NSG16,RFlat", "only at once"),
        ("L2norm,Flat", "leave out L2norm"),
        ("PCAW16,Flat", "whitens vectors.*use PCA or PCAR"),
        ("PCAWR16,Flat", "whitens vectors"),
        ("ITQ16,Flat", "normalises vectors.*use PCA"),
        ("SQ8_direct", "whole ones.*use SQ8"),
        ("IVF4,SQ8_direct_signed", "whole ones"),
        ("HNSW8_PQ8", "makes 'HNSW8_PQ8' for L2 distances only; use HNSW32_SQ8"),
        ("PCA16,HNSW8_PQ8x4", "L2 distances only"),
        ("HNSW8_PQ8,RFlat", "L2 distances only"),
        ("HNSW8_16+PQ8", "L2 distances only"),
        ("ZnLattice2x10_6", "L2 distances only"),
        ("IVF4(RCQ2x1),SQ8", "FAISS cannot make"),
    ],
)
def test_a_factory_that_cannot_be_filled_or_planned(factory: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        size_of(factory, DIMENSION)


@pytest.mark.parametrize(
    ("factory", "least"),
    [
        ("Flat", 1),
        ("SQ8", 1),
        ("RaBitQ,Refine(SQ8)", 1),
        ("HNSW8", 1),
        ("IVF30,Flat", 30),
        ("IVF30_HNSW8,SQ8", 30),
        ("IVF16,PQ8x4np", 16),
        ("PQ2x6np", 64),
        ("IVF16,PQ2np", 256),
        ("IVF300,PQ2np", 300),
        ("IVF16,PQ8x4fs", 16),
        ("PCA8,PQ2x6np", 64),
        ("IVF16,Flat,Refine(PQ2x6np)", 64),
        ("OPQ8,PQ8x4np", 256),
        ("PCA32,IVF16,Flat", 32),
    ],
)
def test_fewer_vectors_do_not_train_it(factory: str, least: int) -> None:
    assert least_trained(index_of(factory, DIMENSION)) == least
    vectors = np.random.default_rng(0).standard_normal((least, DIMENSION)).astype(np.float32)
    index_of(factory, DIMENSION).train(vectors)
    if least > 1:
        with pytest.raises(RuntimeError):
            index_of(factory, DIMENSION).train(vectors[1:])
