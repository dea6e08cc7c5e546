"""Training on queries of `mix`: what its batches are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_data import make_training_data

from raydense.data.mixing import mix
from raydense.data.settings import MixSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.training.batches import Sampler
from raydense.training.examples import read_training_data


def test_batches_of_mixed_examples(tmp_path: Path) -> None:
    data = make_training_data(tmp_path / "data")
    sample = data.root / "sample"
    sources = ["gold", "pseudo"]
    made = MixSettings(
        output=str(tmp_path / "mixed"),
        examples=[f"{name}={data.root / 'examples'}" for name in sources],
        queries=str(sample / "queries"),
        corpus=str(sample / "corpus"),
        weights=[1, 0.5],
        prefixes=["", "pseudo: "],
    )
    mix(made)
    parts = {name: str(tmp_path / "mixed" / name) for name in ("queries", "examples")}
    settings = data.settings(tmp_path / "out", **parts, one_source=True)
    examples, texts = read_training_data(settings, PassageStore(settings.corpus), 2, needs_scores=False)
    ids = read_table(parts["queries"], "queries")["query_id"].to_pylist()
    sampler = Sampler(examples, settings)
    assert sampler.steps_per_epoch == 96 // 8 + 48 // 8
    seen = []
    for step in range(sampler.steps_per_epoch):
        (part,) = sampler.step(step)
        batch = texts.queries(part.query)
        assert len({ids[query].split(":")[0] for query in part.query}) == 1
        assert len({text.startswith("pseudo: ") for text in batch}) == 1
        seen += [ids[query] for query in part.query]
    assert len(set(seen)) == len(seen) == 96 + 48
    mixed = Sampler(examples, data.settings(tmp_path / "out", **parts))
    first = [query for step in range(mixed.steps_per_epoch) for part in mixed.step(step) for query in part.query]
    assert mixed.steps_per_epoch == (96 + 48) // 8
    assert np.bincount([ids[query].startswith("pseudo") for query in first]).tolist() == [96, 48]


def test_one_source_needs_sources(tmp_path: Path) -> None:
    data = make_training_data(tmp_path / "data")
    settings = data.settings(tmp_path / "out", one_source=True)
    with pytest.raises(InputError, match="has no sources"):
        read_training_data(settings, PassageStore(settings.corpus), 2, needs_scores=False)
