"""The stage `topics`: a table of all queries, made once; vectors of passages are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_embeddings

import raydense as rd
from raydense.data.tables import read_table
from raydense.errors import InputError

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_every_query_has_a_topic(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((3_000, 8)).astype(np.float32)
    write_embeddings(tmp_path / "vectors", vectors, queries="print")
    settings = rd.TopicsSettings(embeddings=str(tmp_path / "vectors"), output=str(tmp_path / "topics"), size=100)
    made = rd.topics(settings)
    assert {key: made.summary[key] for key in ("topics", "queries", "model")} == {"topics": 30, "queries": "print", "model": "m"}
    table = read_table(made.path, "topics")
    assert table["query_id"].to_pylist() == [f"q{row}" for row in range(3_000)]
    sizes = np.bincount(table["topic"].to_numpy(), minlength=30)
    assert len(sizes) == 30
    assert sizes.min() > 20
    assert sizes.max() < 300
    again = rd.topics(settings.model_copy(update={"output": str(tmp_path / "again")}))
    assert list(made.head(2)["query_id"]) == ["q0", "q1"]
    assert [file.sha256 for file in again.files] == [file.sha256 for file in made.files]
    assert rd.topics(settings).fingerprint == made.fingerprint


def test_vectors_of_passages_are_refused(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "vectors", np.ones((10, 4), np.float32))
    with pytest.raises(InputError, match="holds vectors of passages, not of queries; encode with --queries"):
        rd.topics(rd.TopicsSettings(embeddings=str(tmp_path / "vectors"), output=str(tmp_path / "topics")))


def test_topics_by_corpus(tmp_path: Path) -> None:
    data = rd.sample(rd.SampleSettings(passages=200, train_queries=60, dev_queries=10, test_queries=10, output=str(tmp_path / "data")))
    parts = {name: str(data.path / name) for name in ("queries", "corpus")}
    given = {**parts, "qrels": str(data.path / "qrels/train"), "size": 20}
    made = rd.topics(rd.TopicsSettings.read({**given, "output": str(tmp_path / "topics")}))
    table = read_table(made.path, "topics")
    topic = dict(zip(table["query_id"].to_pylist(), table["topic"].to_pylist(), strict=True))
    judged = set(read_table(given["qrels"], "qrels")["query_id"].to_pylist())
    assert {topic[query] for query in judged} == {0, 1, 2}
    assert {one for query, one in topic.items() if query not in judged} == {3}
    assert made.summary["topics"] == 4
    assert made.summary["queries"] == rd.Artifact.open(parts["queries"]).fingerprint


def test_one_of_both_ways_is_asked_for(tmp_path: Path) -> None:
    output = str(tmp_path / "topics")
    for given, message in (
        ({}, "give either qrels, with queries and corpus, or embeddings"),
        ({"qrels": "q", "embeddings": "e"}, "give either qrels"),
        ({"qrels": "q", "queries": "a"}, "qrels needs queries and corpus"),
        ({"embeddings": "e", "corpus": "c"}, "topics by embeddings does not use corpus"),
    ):
        with pytest.raises(InputError, match=message):
            rd.TopicsSettings.read({**given, "output": output})
