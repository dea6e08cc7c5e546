"""A small sample with training examples, for the tests of training: every hard negative drawn from the other passages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydense.data.sample import sample
from raydense.data.settings import SampleSettings
from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.storage import Artifact, Draft, Place
from raydense.training.settings import TrainSettings


@dataclass(frozen=True)
class TrainingData:
    """The folders that a training reads."""

    root: Path

    def settings(self, output: Place, **changes: Any) -> TrainSettings:
        """Settings of a short training on it, of a tiny model without dropout; None leaves a setting out."""
        defaults: dict[str, Any] = {
            "objective": "retriever",
            "model": "tiny",
            "batch_size": 8,
            "negatives": 2,
            "lr": 1e-3,
            "dropout": 0.0,
            "precision": "fp32",  # also where the CPU gains by bf16: results are compared with readings in float32
            "engine": {"name": "ddp"},
            "max_steps": 10,
            "corpus": str(self.root / "sample/corpus"),
            "queries": str(self.root / "sample/queries"),
            "examples": str(self.root / "examples"),
        }
        given = {name: value for name, value in {**defaults, **changes}.items() if value is not None}
        return TrainSettings(output=str(output), **given)


def make_training_data(root: Path, negatives: int = 3) -> TrainingData:
    """Make it under `root`: 210 passages, 96 training queries, 16 dev queries."""
    made = SampleSettings(output=str(root / "sample"), passages=200, train_queries=96, dev_queries=16, test_queries=4)
    sample(made)
    store = PassageStore(root / "sample/corpus")
    qrels = read_table(root / "sample/qrels/train", "qrels").to_pandas()
    qrels["row"] = store.rows_of(pa.array(qrels["passage_id"]))
    positives = qrels.groupby("query_id", sort=False)["row"].apply(list)
    rng = np.random.default_rng(0)
    drawn = [rng.choice(np.setdiff1d(np.arange(len(store)), known), negatives, replace=False) for known in positives]
    write_examples(root / "examples", list(positives.index), list(positives), drawn, corpus=store.fingerprint)
    return TrainingData(root)


def write_examples(
    folder: Path, queries: list[str], positives: list[Any], negatives: list[Any], stage: str = "test", **summary: Any
) -> Artifact:
    """An examples artifact, as if `stage` had made it."""
    draft = Draft.open(folder, "examples", {"stage": stage})
    lists = {"positives": pa.array(positives, pa.list_(pa.int64())), "negatives": pa.array(negatives, pa.list_(pa.int64()))}
    commit_table(draft, "examples.parquet", pa.table({"query_id": pa.array(queries), **lists}))
    return draft.finish(len(queries), **summary)
