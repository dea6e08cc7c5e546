"""The number of shards that follows from the size of an index, and stays that of an output that was begun."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from embeddings import write_corpus, write_embeddings

from raydense.retrieval import sharding
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.sharding import shards_for, with_shards
from raydense.storage import Draft, provenance

WIKIPEDIA = 21_015_324


@pytest.mark.parametrize(
    ("vector_bytes", "rows", "shards"), [(1024, WIKIPEDIA, 11), (512, WIKIPEDIA, 6), (40, WIKIPEDIA, 1), (2**32, 3, 3)]
)
def test_a_shard_is_at_most_about_two_gib(vector_bytes: float, rows: int, shards: int) -> None:
    assert shards_for(vector_bytes, rows) == shards


@pytest.fixture
def given(tmp_path: Path) -> IndexSettings:
    write_embeddings(tmp_path / "vectors", np.zeros((1_000, 8), np.float16))
    return IndexSettings(kind="faiss", embeddings=str(tmp_path / "vectors"), output=str(tmp_path / "index"))


def test_a_small_index_has_one_shard_and_the_provenance_of_one_that_was_asked_for(given: IndexSettings) -> None:
    assert provenance("index", with_shards(given)) == provenance("index", given.replaced({"shards": 1})) == provenance("index", given)


def test_an_index_that_was_begun_keeps_its_shards(given: IndexSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft.open(given.output, "index", provenance("index", given.replaced({"shards": 3})))
    assert with_shards(given).shards == 1, "nothing was made yet"
    draft.commit("some", lambda path: path.write_bytes(b"1"), 0)
    assert with_shards(given).shards == 3
    draft.finish(1)
    assert with_shards(given).shards == 3
    monkeypatch.setattr(sharding, "SHARD_BYTES", 4_000)
    assert with_shards(given.replaced({"shards": 2})).shards == 2
    assert with_shards(given.replaced({"output": f"{given.output}-2"})).shards == 8


def test_the_shards_of_bm25_follow_from_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "corpus", ["a word or two"] * 500)
    text_bytes = sum(file.bytes for file in corpus.files if file.path.startswith("corpus-"))
    settings = IndexSettings(kind="bm25", corpus=str(tmp_path / "corpus"), output=str(tmp_path / "index"))
    assert with_shards(settings).shards == 1
    monkeypatch.setattr(sharding, "SHARD_BYTES", text_bytes // 4)
    assert with_shards(settings).shards in (4, 5)
