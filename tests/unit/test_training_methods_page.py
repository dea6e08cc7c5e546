"""The worked example of docs/methods.md runs, and gets gradient caching for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from training_data import make_training_data

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


def test_the_example(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (tmp_path / "margin.py").write_text(code[1], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = make_training_data(tmp_path)
    asked = data.settings(tmp_path / "o", objective="margin:Margin", margin=1.0, normalize=True)
    store, queries = PassageStore(asked.corpus), read_table(asked.queries, "queries", ["query_id", "text"])
    (part,) = Sampler(read_examples(asked.examples, queries, store, 2), asked).step(0)

    def gradients(pieces: int) -> tuple[float, dict[str, torch.Tensor]]:
        model = DualEncoder.load(tiny_folder, normalize=True).train()
        method = method_of(asked)(asked, model, Texts(queries, store), 0, 1)
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
        others = [j for j, row in enumerate(rows) if j != i and store.text_hash[row] not in mine]
        each.append(np.mean([max(0.0, 1 - q[i] @ p[i] + q[i] @ p[j]) for j in others]))
    assert loss == pytest.approx(np.mean(each), rel=1e-5)
    for name, value in gradients(5)[1].items():
        torch.testing.assert_close(value, whole[name], rtol=1e-3, atol=1e-6)
