"""Generating on Ray Data against the generator called in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from chat_server import chat_server

from raydense.data.generated import Generated
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.inference.generate import generate
from raydense.inference.settings import GenerateSettings
from raydense.mining.consistency import filter
from raydense.mining.settings import FilterSettings
from raydense.models.generator import Generator, decode
from raydense.models.sampling import mixed, sample_queries
from raydense.models.tiny import make_tiny_generator
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.storage import Artifact
from tests.inference_world import WORDS, file_bytes, make_corpus, make_retriever, write_table

pytestmark = pytest.mark.usefixtures("ray_cluster")

PASSAGES, EACH = 130, 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("generate")
    make_tiny_generator([" ".join(WORDS)] * 3, root / "model", seed=3)
    make_corpus(root / "corpus", PASSAGES, shard_rows=50)
    return root


def settings(world: Path, output: Path, **more: object) -> GenerateSettings:
    inputs = {"model": str(world / "model"), "corpus": str(world / "corpus")}
    return GenerateSettings.read({"output": str(output), **inputs, "queries_each": EACH, "query_length": 10, "seed": 9, **more})


@pytest.fixture(scope="module")
def generated(world: Path) -> Artifact:
    return generate(settings(world, world / "one", concurrency=(1, 1), duplicates="keep"))


def test_queries_are_those_drawn_for_each_passage_alone(world: Path, generated: Artifact) -> None:
    found, model = Generated(generated.path).slice(0, PASSAGES).to_pylist(), Generator.load(world / "model", query_length=10)
    assert len(found) == PASSAGES
    texts = PassageStore(world / "corpus").passages(np.arange(PASSAGES))
    for row in (0, 49, 50, 129):
        passage = model.tokenize_passages([texts[row]]).pad(model.tokenizer.pad_id)
        key = mixed(torch.tensor([9])) ^ row
        with torch.inference_mode():
            drawn = decode(model.tokenizer, sample_queries(model, passage, key, EACH)[0])
        assert found[row] == [query for query in drawn if query]
    assert generated.summary["queries"] + generated.summary["empty"] == PASSAGES * EACH
    assert generated.summary["repeated"] == 0


def test_three_actors_draw_the_same_queries(world: Path, generated: Artifact) -> None:
    three = generate(settings(world, world / "three", concurrency=(3, 3), duplicates="keep"))
    assert file_bytes(three.path) == file_bytes(generated.path)
    assert three.fingerprint == generated.fingerprint


def test_a_repeated_query_is_dropped(world: Path, tmp_path: Path) -> None:
    sure = generate(settings(world, tmp_path / "sure", sampling={"top_k": 1}))  # the likeliest query, EACH times over
    lists = Generated(sure.path).slice(0, PASSAGES).to_pylist()
    assert {len(queries) for queries in lists} <= {0, 1}
    assert sure.summary["repeated"] + sure.summary["empty"] + sum(map(len, lists)) == PASSAGES * EACH


def test_another_seed_draws_others_and_is_refused_in_the_same_folder(world: Path, generated: Artifact) -> None:
    with pytest.raises(InputError, match=r"settings.seed: 9 -> 10"):
        generate(settings(world, generated.path, seed=10, duplicates="keep"))
    other = generate(settings(world, world / "other", seed=10, duplicates="keep"))
    assert file_bytes(other.path) != file_bytes(generated.path)


def test_a_retriever_is_no_generator(world: Path, tmp_path: Path) -> None:
    make_retriever(tmp_path / "encoder")
    with pytest.raises(InputError, match="is no sequence-to-sequence model"):
        generate(settings(world, tmp_path / "o", model=str(tmp_path / "encoder")))


def test_queries_of_an_endpoint_expand_an_index_and_pass_a_filter(world: Path, tmp_path: Path) -> None:
    """Each passage gets a word that none has, by which only the expanded index finds it, and its own text, which the filter keeps."""
    texts = PassageStore(world / "corpus").passages(np.arange(PASSAGES))
    row_of = {text: row for row, text in reversed(list(enumerate(texts)))}  # of passages with the same text the first

    def answer(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"].partition("Passage: ")[2]
        return f"zebra{row_of[text]}\n{text}"

    with chat_server(answer) as server:
        endpoint = {"url": server.url, "model": "small"}
        given = {"corpus": str(world / "corpus"), "output": str(tmp_path / "generated"), "queries_each": 2, "endpoint": endpoint}
        written = generate(GenerateSettings.read(given))
    expanded = index(IndexSettings(kind="bm25", corpus=world / "corpus", generated=written, output=tmp_path / "expanded"))
    rows = sorted(set(row_of.values()))
    write_table(tmp_path / "asked", "queries", pa.table({"query_id": [f"q{row}" for row in rows], "text": [f"zebra{row}" for row in rows]}))
    found = read_table(search(SearchSettings(index=expanded, queries=tmp_path / "asked", k=1, output=tmp_path / "run")).path, "run")
    assert found["passage_id"].to_pylist() == [f"p{row}" for row in rows]
    plain = index(IndexSettings(kind="bm25", corpus=world / "corpus", output=tmp_path / "plain"))
    kept = filter(FilterSettings(generated=written, corpus=world / "corpus", index=plain, k=5, output=tmp_path / "kept"))
    lists = Generated(kept.path, PassageStore(world / "corpus")).slice(0, PASSAGES).to_pylist()
    assert PASSAGES / 2 < sum(map(len, lists)) <= PASSAGES
    assert all(queries in ([], [text]) for queries, text in zip(lists, texts, strict=True))
