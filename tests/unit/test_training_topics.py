"""Batches of queries about one topic: which queries a batch has, and that an epoch still has each query once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.storage import Artifact, Draft
from raydense.training.batches import Sampler
from raydense.training.epochs import Epochs
from raydense.training.examples import Examples, read_training_data
from raydense.training.ragged import Ragged


def examples(topics: list[int], source: list[int] | None = None) -> Examples:
    each = Ragged(np.arange(len(topics)), np.arange(len(topics) + 1))
    of = {} if source is None else {"source": np.array(source), "weights": {f"s{number}": 1.0 for number in range(max(source) + 1)}}
    return Examples(np.arange(len(topics)), each, each, topic=np.array(topics), **of)


@given(sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6), batch=st.integers(1, 8), epoch=st.integers(0, 3))
def test_an_epoch_has_each_query_once_and_few_batches_have_several_topics(sizes: list[int], batch: int, epoch: int) -> None:
    topics = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    if len(topics) < batch:
        return
    epochs = Epochs(examples(topics.tolist()), batch, False, seed=5)
    order = epochs.order(epoch)
    assert sorted(order.tolist()) == list(range(len(topics)))
    assert np.array_equal(order, epochs.order(epoch))
    whole = order[: epochs.steps * batch].reshape(-1, batch)
    assert sum(len(set(topics[of].tolist())) > 1 for of in whole) <= len(sizes) - 1, "only where one topic ends and the next begins"


def test_batches_are_in_random_order_and_differ_between_epochs() -> None:
    topics = np.repeat(np.arange(8), 32)
    epochs = Epochs(examples(topics.tolist()), 8, False, seed=5)
    of_batch = [topics[epochs.order(epoch)].reshape(-1, 8)[:, 0] for epoch in (0, 1)]
    assert all((np.diff(one) == 0).mean() < 0.4 for one in of_batch), "topic after topic it would be 0.77"
    first, second = ({frozenset(of) for of in epochs.order(epoch).reshape(-1, 8).tolist()} for epoch in (0, 1))
    assert not first & second


def test_with_one_source_a_batch_is_of_one_source_and_one_topic() -> None:
    topics, source = [0] * 16 + [1] * 16, [0, 1] * 16
    order = Epochs(examples(topics, source), 4, True, seed=5).order(0)
    for batch in order.reshape(-1, 4):
        assert len({source[one] for one in batch}) == 1
        assert len({topics[one] for one in batch}) == 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("data"))


def write_topics(folder: Path, queries: str, of: str) -> str:
    """Topics as the stage `topics` writes them: every fourth query is about the same."""
    ids = read_table(queries, "queries")["query_id"]
    draft = Draft.open(folder, "topics", {"of": of})
    commit_table(draft, "topics.parquet", pa.table({"query_id": ids, "topic": pa.array(np.arange(len(ids), dtype=np.int32) % 4)}))
    draft.finish(len(ids), topics=4, queries=of)
    return str(folder)


def test_a_training_reads_the_topics_of_its_queries(data: TrainingData, tmp_path: Path) -> None:
    plain = data.settings(tmp_path / "out")
    topics = write_topics(tmp_path / "topics", plain.queries, Artifact.open(plain.queries).fingerprint)
    settings = data.settings(tmp_path / "out", topics=topics)
    found, _ = read_training_data(settings, PassageStore(settings.corpus), 2, needs_scores=False)
    assert found.topic is not None
    assert np.array_equal(found.topic, found.query % 4)
    sampler = Sampler(found, settings)
    mixed = sum(len(set((part.query % 4).tolist())) > 1 for step in range(sampler.steps_per_epoch) for part in sampler.step(step))
    assert mixed <= 3


def test_topics_of_other_queries_are_refused(data: TrainingData, tmp_path: Path) -> None:
    plain = data.settings(tmp_path / "out")
    settings = data.settings(tmp_path / "out", topics=write_topics(tmp_path / "topics", plain.queries, "another"))
    with pytest.raises(InputError, match="has the topics of other queries than"):
        read_training_data(settings, PassageStore(settings.corpus), 2, needs_scores=False)


def test_topics_need_in_batch_negatives(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a training without in_batch does not use topics"):
        data.settings(tmp_path / "out", topics=str(tmp_path / "topics"), in_batch=False, cross_batch=None)
