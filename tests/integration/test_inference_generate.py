"""Generating on Ray Data against the generator called in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raydense.data.generated import Generated
from raydense.data.store import PassageStore
from raydense.errors import InputError
from raydense.inference.generate import generate
from raydense.inference.settings import GenerateSettings
from raydense.models.generator import Generator, decode
from raydense.models.sampling import mixed, sample_queries
from raydense.models.tiny import make_tiny_generator
from raydense.storage import Artifact
from tests.inference_world import WORDS, file_bytes, make_corpus, make_retriever

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
