"""An index that this process holds gives the hits of a pool of it, from several threads too; ties and large blocks included."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings import write_corpus, write_embeddings

from raydense.errors import InputError
from raydense.retrieval.held import HeldIndex
from raydense.retrieval.index import index
from raydense.retrieval.pool import SearchPool
from raydense.retrieval.settings import IndexSettings
from raydense.storage import Artifact

pytestmark = pytest.mark.usefixtures("ray_cluster")

ROWS, DIMENSION = 2_000, 24


def whole_numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Vectors of small whole numbers: hundreds of ties, exact in any order of summing."""
    return rng.integers(-1, 2, (rows, DIMENSION)).astype(np.float32)


def make_index(folder: Path, vectors: np.ndarray, factory: str, shards: int) -> Artifact:
    write_embeddings(folder / "vectors", vectors, files=3)
    settings = IndexSettings(
        kind="faiss", embeddings=str(folder / "vectors"), factory=factory, shards=shards, train_sample=ROWS, output=str(folder / "ix")
    )
    return index(settings)


@pytest.mark.parametrize(("factory", "shards"), [("Flat", 1), ("Flat", 3), ("SQfp16", 2), ("IVF16,Flat", 2), ("HNSW16,Flat", 2)])
@pytest.mark.parametrize("queries", [1, 130])
def test_the_hits_of_a_pool(tmp_path: Path, factory: str, shards: int, queries: int) -> None:
    rng = np.random.default_rng(7)
    exact = "," not in factory
    drawn = partial(whole_numbers, rng) if exact else lambda rows: rng.standard_normal((rows, DIMENSION)).astype(np.float32)
    made = make_index(tmp_path, drawn(ROWS), factory, shards)
    asked, params = drawn(queries), "nprobe=4" if "IVF" in factory else ""
    with SearchPool.start(made, search_params=params) as pool:
        wanted = pool.answer(asked, 20)
    held = HeldIndex(made, threads=2, search_params=params)
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda _: held.answer(asked, 20), range(8)))
    for answer in found:
        np.testing.assert_array_equal(answer.hits[1], wanted.hits[1])
        np.testing.assert_array_equal(answer.hits[0], wanted.hits[0])
    assert found[0].index == wanted.index == made.fingerprint


def test_the_hits_of_a_pool_of_bm25(tmp_path: Path) -> None:
    words = np.random.default_rng(3).choice(["sea", "ship", "harbour", "gull", "tide", "net"], (300, 4))
    write_corpus(tmp_path / "corpus", [" ".join(line) for line in words.tolist()])
    made = index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), shards=2, output=str(tmp_path / "ix")))
    asked = ["gull over the harbour", "net", "nothing known"]
    with SearchPool.start(made) as pool:
        scores, rows = pool.search(asked, 30)
    held = HeldIndex(made)
    np.testing.assert_array_equal(held.search(asked, 30)[0], scores)
    np.testing.assert_array_equal(held.search(asked, 30)[1], rows)
    assert (rows[2] == -1).all()
    for refused in ({"queries": asked, "k": 0}, {"queries": np.zeros((1, 3), np.float32), "k": 1}):
        with pytest.raises(InputError):
            held.search(**refused)  # type: ignore[arg-type]


def test_search_parameters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = make_index(tmp_path, whole_numbers(np.random.default_rng(1), 500), "Flat", 1)
    with pytest.raises(InputError, match="search_params"):
        HeldIndex(made, search_params="nprobe=3")


def test_what_is_no_search_is_one_line(tmp_path: Path) -> None:
    dense = make_index(tmp_path, whole_numbers(np.random.default_rng(5), 50), "Flat", 1)
    write_corpus(tmp_path / "corpus", ["a ship", "a net"])
    words = index(IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "words")))
    vectors = np.ones((2, DIMENSION))
    wide = vectors.copy()
    wide[1, 3] = 1e300
    refused: list[tuple[Artifact, Any, Any, str]] = [
        (dense, vectors, k, f"k: k is {re.escape(repr(k))}; give a whole number, at least 1") for k in (0, 2.0, "3", True, None)
    ]
    refused += [(dense, wide, 1, "not finite in float32")]
    refused += [
        (dense, vectors.astype(kind), 1, f"dtype {np.dtype(kind)}, no real numbers") for kind in ("complex64", "bool", "object", "U4")
    ]
    refused += [(words, asked, 1, "searched with a list of strings") for asked in ([3], ["net", None], "net", [b"net"])]
    with SearchPool.start(dense) as of_dense, SearchPool.start(words) as of_words:
        pools = {dense.fingerprint: of_dense, words.fingerprint: of_words}
        for made, asked, k, line in refused:
            for search in (HeldIndex(made).search, pools[made.fingerprint].search):
                with pytest.raises(InputError, match=line):
                    search(asked, k)
        for kind in ("float64", "float16", "int8", "uint32"):
            np.testing.assert_array_equal(of_dense.search(vectors.astype(kind), np.int64(3))[1], of_dense.search(vectors, 3)[1])
