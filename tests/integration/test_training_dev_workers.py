"""The dev metric of several workers: it is worker 0's on all of them, so that they save, and end, after the same step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from training_data import make_training_data

from raydense.data.store import PassageStore
from raydense.models.tiny import make_tiny_encoder
from raydense.training.dev import Dev
from raydense.training.dev_sets import METRIC, DevSet, relevant_columns
from raydense.training.engine import make_engine
from raydense.training.method import load_model, method_of
from raydense.training.settings import TrainSettings

CPU = torch.device("cpu")


def odd(dev: DevSet) -> DevSet:
    """The dev set without its last query: an odd number of them, over an odd number of passages."""
    return replace(dev, query=dev.query[:-1], relevant=dev.relevant.take(np.arange(len(dev.query) - 1)))


def measure(rank: int, given: dict[str, Any], folder: str) -> None:
    """A worker of two, whose shares are not the same; the second one's own copy would say that no passage is relevant."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    asked = TrainSettings(**given)
    store = PassageStore(asked.corpus)
    (dev,) = method_of(asked).dev_sets(asked, store).values()
    _, texts = method_of(asked).read(asked, store)
    dev = odd(dev)
    if rank:
        dev = replace(dev, relevant=relevant_columns(dev.query[:0], dev.query[:0], len(dev.query)))
    model = load_model(asked, asked.model)
    found = Dev(dev, model, texts, rank, 2).measure(make_engine(model, asked, CPU, "fp32"))
    Path(folder, f"found-{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def test_all_workers_have_the_metrics_of_the_first(tmp_path: Path) -> None:
    data = make_training_data(tmp_path / "data")
    make_tiny_encoder(["the red fox", "an old bridge of stone"], tmp_path / "tiny", 1)
    dev = {"qrels": str(data.root / "sample/qrels/dev"), "passages": 41}
    asked = data.settings(tmp_path / "o", model=str(tmp_path / "tiny"), workers=2, dev=dev)
    run_ranks(measure, (asked.model_dump(exclude_unset=True), str(tmp_path)), 2)
    first, second = (json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(2))
    assert first == second
    assert first[METRIC] > 0
    store, model = PassageStore(asked.corpus), load_model(asked, asked.model)
    dev = odd(method_of(asked).dev_sets(asked, store)[METRIC])
    assert (len(dev.query) % 2, len(dev.rows) % 2) == (1, 1)
    _, texts = method_of(asked).read(asked, store)
    alone = Dev(dev, model, texts, 0, 1).measure(make_engine(model, asked.model_copy(update={"workers": 1}), CPU, "fp32"))
    assert first == pytest.approx(alone)
