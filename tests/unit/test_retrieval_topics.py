"""Topics of queries: by vectors, groups that lie apart; by their passages, runs of neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_embeddings
from hypothesis import given
from hypothesis import strategies as st

from raydense.forecast import PROCESS_BYTES, Holds, Known
from raydense.retrieval.settings import TopicsSettings
from raydense.retrieval.topics import clusters_of, count_of, runs_of
from raydense.retrieval.vectors import Vectors


def vectors_in_groups(folder: Path, groups: int, each: int) -> Vectors:
    """Vectors of any length around `groups` directions at right angles; that of row r is r % groups."""
    rng = np.random.default_rng(3)
    around = np.eye(groups, 16)[np.arange(groups * each) % groups] + 0.05 * rng.standard_normal((groups * each, 16))
    write_embeddings(folder, (around * rng.uniform(0.5, 5, (len(around), 1))).astype(np.float16), files=3, queries="print")
    return Vectors(folder, "queries")


def test_groups_that_lie_apart_are_topics(tmp_path: Path) -> None:
    vectors = vectors_in_groups(tmp_path / "vectors", groups=2, each=150)
    topic = clusters_of(vectors, 2, seed=1)
    assert topic.dtype == np.int32
    assert len({(row % 2, found) for row, found in enumerate(topic.tolist())}) == 2, "a topic for each direction"


def test_a_topic_is_that_of_the_centroid_nearest_by_cosine(tmp_path: Path) -> None:
    """Whatever k-means finds, no vector is nearer by cosine to the mean of another topic."""
    vectors = vectors_in_groups(tmp_path / "vectors", groups=12, each=20)
    topic = clusters_of(vectors, 5, seed=4)
    taken = vectors.take(np.arange(vectors.rows))
    unit = taken / np.linalg.norm(taken, axis=1, keepdims=True)
    means = np.stack([unit[topic == one].mean(axis=0) for one in range(5)])
    scores = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    assert (scores.argmax(axis=1) == topic).mean() > 0.98  # the last round moves the centroids once more
    assert np.array_equal(topic, clusters_of(vectors, 5, seed=4))


@pytest.mark.parametrize(("queries", "size", "count"), [(1_000, 128, 8), (100, 128, 1), (3, 128, 1), (300, 100, 3)])
def test_the_number_of_topics_follows_from_their_size(queries: int, size: int, count: int) -> None:
    assert count_of(queries, size) == count


@given(rows=st.lists(st.one_of(st.integers(0, 50), st.none()), min_size=1, max_size=60), size=st.integers(2, 12))
def test_topics_by_corpus_are_runs_of_neighbours(rows: list[int | None], size: int) -> None:
    first = np.array([np.iinfo(np.int64).max if row is None else row for row in rows])
    topic = runs_of(first, size)
    there = [(row, int(one)) for row, one in zip(rows, topic, strict=True) if row is not None]
    assert sorted(there) == sorted(there, key=lambda pair: (pair[1], pair[0])), "no passage of a later topic lies before one of an earlier"
    count = count_of(len(there), size)
    assert {int(one) for row, one in zip(rows, topic, strict=True) if row is None} <= {count}
    sizes = np.bincount([one for _, one in there], minlength=count)
    assert len(sizes) == count
    assert len(there) < size or all(size / 2 <= one < 1.5 * size + 1 for one in sizes)


def test_the_forecast_follows_the_products_of_k_means() -> None:
    """1,280 queries in 10 topics: 10 rounds over a sample of 640, then all of them, each compared with 10 centroids of 768 numbers."""
    known = Known()
    known.expect({"v": Holds(1_280, "about", each=768), "q": Holds(1_280, each=50)})
    by_vectors = TopicsSettings(embeddings="v", output="o").forecast(known)
    assert by_vectors.needs == "about 1,280 queries, 128 in a topic"
    assert by_vectors.work == {"products": (10 * 640 + 1_280) * 10 * 768}
    assert by_vectors.makes["o"].rows == 1_280
    assert by_vectors.memory > 4 * 768 * 2 * 1_280
    by_corpus = TopicsSettings(qrels="r", queries="q", corpus="c", output="o").forecast(known)
    assert (by_corpus.work, by_corpus.memory) == ({"queries": 1_280}, PROCESS_BYTES)
    assert TopicsSettings(embeddings="later", output="o").forecast(known).needs == ""
