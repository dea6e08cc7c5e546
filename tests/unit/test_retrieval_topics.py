"""Topics of queries: k-means finds groups that lie apart, and the same ones each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_embeddings

from raydense.retrieval.topics import count_of, topics_of
from raydense.retrieval.vectors import Vectors


def vectors_in_groups(folder: Path, groups: int, each: int) -> Vectors:
    """Vectors of any length around `groups` directions at right angles; that of row r is r % groups."""
    rng = np.random.default_rng(3)
    around = np.eye(groups, 16)[np.arange(groups * each) % groups] + 0.05 * rng.standard_normal((groups * each, 16))
    write_embeddings(folder, (around * rng.uniform(0.5, 5, (len(around), 1))).astype(np.float16), files=3, queries="print")
    return Vectors(folder, "queries")


def test_groups_that_lie_apart_are_topics(tmp_path: Path) -> None:
    vectors = vectors_in_groups(tmp_path / "vectors", groups=2, each=150)
    topic = topics_of(vectors, 2, seed=1)
    assert topic.dtype == np.int32
    assert len({(row % 2, found) for row, found in enumerate(topic.tolist())}) == 2, "a topic for each direction"


def test_a_topic_is_that_of_the_centroid_nearest_by_cosine(tmp_path: Path) -> None:
    """Whatever k-means finds, no vector is nearer by cosine to the mean of another topic."""
    vectors = vectors_in_groups(tmp_path / "vectors", groups=12, each=20)
    topic = topics_of(vectors, 5, seed=4)
    taken = vectors.take(np.arange(vectors.rows))
    unit = taken / np.linalg.norm(taken, axis=1, keepdims=True)
    means = np.stack([unit[topic == one].mean(axis=0) for one in range(5)])
    scores = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    assert (scores.argmax(axis=1) == topic).mean() > 0.98  # the last round moves the centroids once more
    assert np.array_equal(topic, topics_of(vectors, 5, seed=4))


@pytest.mark.parametrize(("queries", "size", "count"), [(1_000, 128, 8), (100, 128, 1), (3, 128, 1), (300, 100, 3)])
def test_the_number_of_topics_follows_from_their_size(queries: int, size: int, count: int) -> None:
    assert count_of(queries, size) == count
