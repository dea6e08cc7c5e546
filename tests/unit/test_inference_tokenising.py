"""What a tokenise task gives, and what its process opens once for all tasks, without Ray."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from inference_world import make_corpus, make_queries, make_reranker, make_retriever, write_table

from raydense.data.store import PassageStore, store_of
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.encode import PartEncoder
from raydense.inference.layout import Layout
from raydense.inference.packing import tokens_of, unpack
from raydense.inference.rerank import tokenise_block
from raydense.inference.settings import EncodeSettings, RerankSettings
from raydense.inference.sources import source_of
from raydense.inference.tokenising import kept_tokenizer, retriever_tokenizer, tokenise_part
from raydense.models.tokenizer import load_tokenizer
from raydense.storage import Artifact, Draft, fingerprint_of


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokenising")
    make_reranker(root / "reranker", make_retriever(root / "retriever"))
    make_corpus(root / "corpus", 20, shard_rows=8)
    make_queries(root / "queries", 4)
    ids = [f"q{i}" for i in range(4)]
    write_table(
        root / "run", "run", pa.table({"query_id": ids, "passage_id": ["p0", "p9", "p1", "p19"], "rank": [1] * 4, "score": [0.0] * 4})
    )
    return root


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the corpora that are opened, from here on."""
    store_of.cache_clear()
    found: list[str] = []
    open_ = PassageStore.__init__
    monkeypatch.setattr(PassageStore, "__init__", lambda self, path, *given: found.append(str(path)) or open_(self, path, *given))
    return found


def prints(world: Path, model: str) -> dict[str, str]:
    kinds = {name: Artifact.open(world / name).fingerprint for name in ("corpus", "queries", "run")}
    return {**kinds, "model": fingerprint_of(world / model)}


def test_shards_are_tokenised_as_in_this_process_and_the_corpus_is_opened_once(world: Path, opened: list[str], tmp_path: Path) -> None:
    settings = EncodeSettings.read({"model": str(world / "retriever"), "corpus": str(world / "corpus"), "output": "o"})
    draft = Draft.open(tmp_path / "o", "embeddings", {})
    task = partial(tokenise_part, settings=settings, draft=draft, prints=prints(world, "retriever"), load=retriever_tokenizer)
    columns = [unpack(task(pa.table({"part": [shard]}))) for shard in (2, 0, 1)]
    assert opened == [str(world / "corpus")]
    store, tokenizer = PassageStore(world / "corpus"), load_tokenizer(world / "retriever")
    for shard, found in zip((2, 0, 1), columns, strict=True):
        start, stop = store.shards[shard]
        assert found["range"].to_pylist() == [start, stop]
        assert tokens_of(found).ids.tolist() == tokenizer.passages(store.passages(np.arange(start, stop))).ids.tolist()


def test_blocks_of_pairs_open_the_corpus_once(world: Path, opened: list[str], tmp_path: Path) -> None:
    inputs = {name: str(world / name) for name in ("corpus", "queries", "run")}
    settings = RerankSettings.read({**inputs, "model": str(world / "reranker"), "output": "o", "block": 2})
    draft = Draft.open(tmp_path / "o", "run", {})
    blocks = [pa.table({"block": [n], "start": [2 * n], "stop": [2 * n + 2]}) for n in range(2)]
    rows = [unpack(tokenise_block(block, settings, draft, prints(world, "reranker")))["row"].to_pylist() for block in blocks]
    assert rows == [[0, 9], [1, 19]]
    assert opened == [str(world / "corpus")]


def test_a_model_replaced_while_a_stage_runs_is_refused_by_each_task_and_actor(world: Path, tmp_path: Path) -> None:
    model = shutil.copytree(world / "retriever", tmp_path / "model")
    settings = EncodeSettings.read({"model": str(model), "corpus": str(world / "corpus"), "output": "o"})
    draft, begun = Draft.open(tmp_path / "o", "embeddings", {}), {**prints(world, "retriever"), "model": fingerprint_of(model)}
    tokenise = partial(tokenise_part, settings=settings, draft=draft, prints=begun, load=retriever_tokenizer)
    layout = Layout(fewest=1, first=1, most=1, gpus=0, cpus=1, per_node=1)
    done = PartEncoder(settings, draft, begun, layout, None)(tokenise(pa.table({"part": [0]})))
    make_retriever(model, seed=99)
    kept_tokenizer.cache_clear()  # as in a worker that starts now
    with pytest.raises(InputError, match="model: was replaced while a stage was reading it"):
        tokenise(pa.table({"part": [1]}))
    with pytest.raises(InputError, match="model: was replaced while a stage was reading it"):
        PartEncoder(settings, draft, begun, layout, None)(done)


def test_queries_are_read_at_their_own_length_and_refused_when_replaced(world: Path, tmp_path: Path) -> None:
    queries = shutil.copytree(world / "queries", tmp_path / "queries")
    settings = EncodeSettings.read({"model": str(world / "retriever"), "queries": str(queries), "output": "o", "query_length": 4})
    draft, begun = Draft.open(tmp_path / "o", "embeddings", {}), prints(world, "retriever")
    changes = tuple(settings.changes().items())
    tokenise = partial(tokenise_part, settings=settings, draft=draft, prints=begun, load=retriever_tokenizer, changes=changes)
    found = tokens_of(unpack(tokenise(pa.table({"part": [0]}))))
    texts = read_table(queries, "queries")["text"].to_pylist()
    assert found.ids.tolist() == load_tokenizer(world / "retriever", query_length=4).queries(texts).ids.tolist()
    assert found.lengths.max() == 4
    source_of.cache_clear()
    shutil.rmtree(queries)
    make_queries(queries, 7)
    with pytest.raises(InputError, match="queries: was replaced while a stage was reading it"):
        tokenise(pa.table({"part": [0]}))
