"""Distillation from stored teacher scores: the losses of sentence-transformers on the same inputs, and which examples are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sentence_transformers.losses import DistillKLDivLoss, MarginMSELoss
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.storage import Draft
from raydense.training.batches import Sampler
from raydense.training.engine import TorchEngine
from raydense.training.method import load_model, method_of
from raydense.training.part import Part
from raydense.training.step import forward_and_backward, run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    """Examples whose teacher scores identify their passage: row / 100; the first query's positives have none."""
    root = tmp_path_factory.mktemp("distillation")
    made = make_training_data(root / "made")
    table = read_table(made.root / "examples", "examples", ["query_id", "positives", "negatives"])
    for name in ("positive", "negative"):
        scores = [[row / 100 for row in rows] for rows in table[f"{name}s"].to_pylist()]
        scores[0] = None if name == "positive" else scores[0]
        table = table.append_column(f"{name}_scores", pa.array(scores, pa.list_(pa.float32())))
    draft = Draft.open(root / "scored", "examples", {})
    commit_table(draft, "examples.parquet", table)
    draft.finish(len(table), corpus=PassageStore(made.root / "sample/corpus").fingerprint)
    return made


def settings_of(data: TrainingData, method: str, **changes: Any) -> Any:
    scored = {"examples": str(data.root.parent / "scored"), "normalize": True}
    return data.settings(data.root / "o", objective=method, **{**scored, **changes})


def drawn(data: TrainingData, asked: Any) -> tuple[Part, Any]:
    examples, texts = method_of(asked).read(asked, PassageStore(asked.corpus))
    return Sampler(examples, asked).step(0)[0], texts


@pytest.mark.parametrize("method", ["margin-mse", "kl"])
def test_the_loss_is_that_of_sentence_transformers(data: TrainingData, tiny_folder: Path, method: str) -> None:
    asked = settings_of(data, method, model=str(tiny_folder), **({"temperature": 1.0} if method == "kl" else {}))
    part, texts = drawn(data, asked)
    model = load_model(asked, asked.model)
    trained = method_of(asked)(asked, model, texts, 0, 1)
    batch = trained.prepare(part)
    lists = np.concatenate([part.positives, part.negatives], axis=1)
    assert batch["teacher"].numpy() == pytest.approx(lists / 100, rel=1e-5)
    engine = TorchEngine(model, asked, torch.device("cpu"), "fp32")
    with torch.no_grad():
        outputs = run(engine, {name: value for name, value in batch.items() if isinstance(value, dict)})
        columns = [outputs[0], *outputs[1].view(*lists.shape, -1).unbind(dim=1)]
        theirs: Any = MarginMSELoss(None) if method == "margin-mse" else DistillKLDivLoss(None)
        labels = batch["teacher"][:, :1] - batch["teacher"][:, 1:] if method == "margin-mse" else batch["teacher"]
        expected = theirs.compute_loss_from_embeddings(columns, labels)
    loss, metrics = trained.loss(outputs, batch)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    scores = np.stack([(columns[0] * column).sum(dim=1).numpy() for column in columns[1:]], axis=1)
    first = scores[:, :1] > scores[:, 1:] if method == "margin-mse" else scores.argmax(axis=1) == 0
    assert float(metrics["accuracy"]) == pytest.approx(first.mean())
    assert 0 < first.mean() < 1


def test_a_tie_with_the_positive_counts_as_a_miss(data: TrainingData) -> None:
    asked = settings_of(data, "kl")
    trained = method_of(asked)(asked, SimpleNamespace(config=SimpleNamespace(normalize=False)), None, 0, 1)
    _, metrics = trained.loss((torch.ones(2, 4), torch.ones(6, 4)), {"teacher": torch.zeros(2, 3)})
    assert float(metrics["accuracy"]) == 0


@pytest.mark.parametrize("method", ["margin-mse", "kl"])
def test_it_learns_and_pieces_change_nothing(data: TrainingData, tiny_folder: Path, method: str) -> None:
    def losses(micro_batch: int, steps: int) -> tuple[list[float], DualEncoder]:
        asked = settings_of(data, method, model=str(tiny_folder), micro_batch=micro_batch)
        part, texts = drawn(data, asked)
        model = load_model(asked, asked.model).train()
        trained, pieces = method_of(asked)(asked, model, texts, 0, 1), 3 if micro_batch else 1
        engine = TorchEngine(model, asked, torch.device("cpu"), "fp32", pieces)
        found = []
        for _ in range(steps):
            found.append(float(forward_and_backward(engine, trained, trained.prepare(part), pieces, [0] * pieces)["loss"]))
            engine.step(1e-3)
        return found, model

    whole, model = losses(0, 8)
    assert whole[-1] < 0.7 * whole[0]
    parts, other = losses(9, 8)
    assert parts == pytest.approx(whole, rel=1e-3)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)


def test_examples_without_scores_are_refused_or_left_out(data: TrainingData, capsys: pytest.CaptureFixture[str]) -> None:
    asked = settings_of(data, "margin-mse")
    examples, _ = method_of(asked).read(asked, PassageStore(asked.corpus), log=True)
    assert len(examples) == 95
    assert "1 of 96 queries have too few passages with a teacher's score, and are left out" in capsys.readouterr().err
    bare = settings_of(data, "margin-mse", examples=str(data.root / "examples"))
    with pytest.raises(
        InputError, match=r"has no teacher's scores, which objective margin-mse learns from; give examples of `raydense label`"
    ):
        method_of(bare).read(bare, PassageStore(bare.corpus))
    more = settings_of(data, "margin-mse", more_examples=str(data.root / "examples"))
    with pytest.raises(InputError, match=rf"^{data.root}/examples: has no teacher's scores"):
        method_of(more).read(more, PassageStore(more.corpus))


def test_draws_are_those_without_scores(data: TrainingData) -> None:
    """The scores go with the passages, and change neither which passages are drawn nor their order."""
    scored, bare = settings_of(data, "retriever"), data.settings(data.root / "o")
    one, two = drawn(data, scored)[0], drawn(data, bare)[0]
    assert (one.positives == two.positives).all()
    assert (one.negatives == two.negatives).all()
    assert one.scores is not None
    assert two.scores is None
    assert one.scores[:, 1:] == pytest.approx(one.negatives / 100, rel=1e-5)
