"""The worked examples of docs/methods.md give the losses that they say, and run in pieces."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.models.dual_encoder import DualEncoder
from raydense.training.batches import Sampler
from raydense.training.engine import TorchEngine
from raydense.training.examples import read_examples
from raydense.training.method import method_of
from raydense.training.step import forward_and_backward
from raydense.training.texts import Texts

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize(("name", "in_batch"), [("Margin", False), ("MarginInBatch", True)])
def test_the_examples(
    data: TrainingData, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, in_batch: bool
) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "margin.py").write_text("".join(code), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    asked = data.settings(tmp_path / "o", objective=f"margin:{name}", margin=1.0, normalize=True)
    store, queries = PassageStore(asked.corpus), read_table(asked.queries, "queries", ["query_id", "text"])
    (part,) = Sampler(read_examples(asked.examples, queries, store, 2), asked).step(0)

    def gradients(pieces: int, micro_batch: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
        model, of_pieces = DualEncoder.load(tiny_folder, normalize=True).train(), asked.model_copy(update={"micro_batch": micro_batch})
        method = method_of(asked)(of_pieces, model, Texts(queries, store), 0, 1)
        measured = forward_and_backward(
            TorchEngine(model, asked, torch.device("cpu"), "fp32"), method, method.prepare(part), pieces, [1] * pieces
        )
        return float(measured["loss"]), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    loss, whole = gradients(1)
    model = DualEncoder.load(tiny_folder, normalize=True)
    with torch.no_grad():
        rows = [*part.positives[:, 0], *part.negatives.ravel()]
        q = model.encode_queries(model.tokenize_queries(Texts(queries, store).queries(part.query)).pad(0)).double().numpy()
        p = model.encode_passages(model.tokenize_passages(store.passages(np.array(rows))).pad(0)).double().numpy()
    each = []
    for i in range(len(q)):
        mine = {store.text_hash[row] for row in part.known.take(np.array([i])).values}
        own = range(len(q) + i * part.negatives.shape[1], len(q) + (i + 1) * part.negatives.shape[1])
        others = [j for j, row in enumerate(rows) if j != i and store.text_hash[row] not in mine] if in_batch else own
        each.append(np.mean([max(0.0, 1 - q[i] @ p[i] + q[i] @ p[j]) for j in others]))
    assert loss == pytest.approx(np.mean(each), rel=1e-5)
    for weight, value in gradients(4, 6)[1].items():
        torch.testing.assert_close(value, whole[weight], rtol=1e-3, atol=1e-6)
