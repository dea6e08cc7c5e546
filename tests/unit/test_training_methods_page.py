"""The worked examples of docs/methods.md give the losses that they say, and run in pieces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_data import TrainingData, make_training_data

from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.models.masking import NOT_MASKED
from raydense.refresh.check import check_refresh
from raydense.training.batches import Sampler
from raydense.training.engine import TorchEngine
from raydense.training.examples import Examples, read_examples
from raydense.training.method import load_model, method_of
from raydense.training.ragged import Ragged
from raydense.training.settings import PretrainSettings
from raydense.training.step import forward_and_backward, run
from raydense.training.texts import Texts
from raydense.training.trial_batch import longest_batch

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize(("name", "in_batch"), [("Margin", None), ("MarginInBatch", True), ("MarginInBatch", False)])
def test_the_examples(
    data: TrainingData, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, in_batch: bool | None
) -> None:
    first, _, second, *_ = code_of_the_page()
    (tmp_path / "margin.py").write_text(first + second, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    asked = data.settings(tmp_path / "o", objective=f"margin:{name}", margin=1.0, normalize=True, in_batch=in_batch)
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


def test_one_batch_without_a_training(data: TrainingData, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, one_batch, *_ = code_of_the_page()
    asked = data.settings(tmp_path / "o")
    (tmp_path / "data").mkdir()
    for name, made in {"data/corpus": asked.corpus, "data/queries": asked.queries, "ex": asked.examples, "model": tiny_folder}.items():
        (tmp_path / name).symlink_to(made)
    (tmp_path / "alone.py").write_text(first, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(one_batch.replace("from margin", "from alone").replace("negatives=4", "negatives=2"), found)
    assert found["loss"].shape == ()
    assert found["loss"].requires_grad
    assert list(found["metrics"]) == ["accuracy"]


def test_negatives_of_simans_are_drawn_around_the_score_of_the_positive(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, second, simans, *_ = code_of_the_page()
    (tmp_path / "simans.py").write_text(first + second + simans, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    asked = data.settings(tmp_path / "o", objective="simans:SimANS", negatives=1, a=0.5, b=-1.0, batch_size=8)
    positives, scores = np.arange(8, dtype=np.float32), np.array([-4, -2, -1, 0, 3], np.float32)
    lists = Ragged(np.tile(np.arange(5), 8), np.arange(9) * 5, np.concatenate([one + scores for one in positives]))
    examples = Examples(np.arange(8), Ragged(np.full(8, 9), np.arange(9), positives), lists)
    sampler = Sampler(examples, asked)
    drawn = np.concatenate([sampler.step(step)[0].negatives.ravel() for step in range(500)])
    expected = np.exp(-0.5 * (scores + 1) ** 2)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / len(drawn), expected / expected.sum(), atol=0.04)


def test_a_refresh_of_simans_needs_what_scores_its_negatives(data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, second, simans, *_ = code_of_the_page()
    (tmp_path / "simans.py").write_text(first + second + simans, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    asked = data.settings(tmp_path / "o", objective="simans:SimANS", refresh={"every": 5})
    with pytest.raises(
        InputError, match=r"refresh.reranker: objective simans:SimANS learns from a teacher's scores, and new negatives have"
    ):
        check_refresh(asked, asked.refresh)


def test_retromae_is_the_loss_of_both_maskings(data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is trained in pieces, too, and its longest batch is made for the estimate of the memory."""
    (tmp_path / "retromae.py").write_text(code_of_the_page()[4], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    corpus, output = str(data.root / "sample/corpus"), str(tmp_path / "o")
    asked = PretrainSettings(method="retromae:RetroMae", model="tiny", corpus=corpus, output=output, batch_size=8, dropout=0.0)
    kind, store = method_of(asked), PassageStore(corpus)
    kind.make_tiny(store.passages(np.arange(len(store))), tmp_path / "tiny", 0)
    examples, texts = kind.read(asked, store)
    (part,) = Sampler(examples, asked).step(0)

    def gradients(pieces: int, micro_batch: int = 0) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        of_pieces, model = asked.model_copy(update={"micro_batch": micro_batch}), load_model(asked, str(tmp_path / "tiny")).train()
        method = kind(of_pieces, model, texts, 0, 1)
        measured = forward_and_backward(
            TorchEngine(model, asked, torch.device("cpu"), "fp32"), method, method.prepare(part), pieces, [1] * pieces
        )
        return {name: float(value) for name, value in measured.items()}, {
            name: p.grad for name, p in model.named_parameters() if p.grad is not None
        }

    whole, gradient = gradients(1)
    cut, of_pieces = gradients(4, 2)
    assert cut == pytest.approx(whole, rel=1e-4)
    for name, value in of_pieces.items():
        torch.testing.assert_close(value, gradient[name], rtol=1e-3, atol=1e-6)

    model = load_model(asked, str(tmp_path / "tiny"))
    batch = kind(asked, model, texts, 0, 1).prepare(part)
    hidden = {name: (batch[name]["labels"] != NOT_MASKED) for name in ("passages", "decoded")}
    assert not torch.equal(*hidden.values())
    with torch.no_grad():
        states = model.states(batch["passages"])[-1]
        embedded = model.retriever.encoder.embeddings(input_ids=batch["decoded"]["input_ids"])
        embedded[:, 0] = states[:, 0]
        decoded = model.decoder(embedded, src_key_padding_mask=batch["decoded"]["attention_mask"] == 0)
        wanted = []
        for name, of in (("passages", states), ("decoded", decoded)):
            logits = model.mlm_head(of[hidden[name]], model.retriever.encoder.get_input_embeddings().weight)
            wanted.append(float(torch.nn.functional.cross_entropy(logits, batch[name]["labels"][hidden[name]])))
    assert whole["loss"] == pytest.approx(sum(wanted), rel=1e-4)
    assert [whole["mlm"], whole["decoder"]] == pytest.approx(wanted, rel=1e-4)
    longest = longest_batch(model, asked, 1)
    assert [one["input_ids"].shape for one in longest.values()] == [(8, asked.passage_length)] * 2


def code_of_the_page() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("base", "shape"), [("DualEncoderMethod", (8, 3)), ("Retriever", (8, 24)), ("Reranker", (8, 3)), ("Mlm", ())])
def test_what_the_table_gives_a_loss(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, shape: tuple[int, ...]
) -> None:
    (module, shown), *_ = re.findall(rf"^\| `{base}` of `([\w.]+)` \|.*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    *before, last = (line for line in re.findall(r"`([^`]+)`", shown) if "(" in line)
    body = "\n        ".join([*before, f"return {last}"])
    code = f"from {module} import *\nclass Mine({base}):\n    def loss(self, outputs, batch):\n        {body}\n"
    (tmp_path / f"shown_{base}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    named = f"shown_{base}:Mine"
    if base == "Mlm":
        corpus = str(data.root / "sample/corpus")
        asked = PretrainSettings(method=named, model="tiny", corpus=corpus, output=str(tmp_path / "o"), batch_size=8)
    else:
        asked = data.settings(tmp_path / "o", objective=named)
    kind, store = method_of(asked), PassageStore(asked.corpus)
    kind.make_tiny(store.passages(np.arange(len(store))), tmp_path / "tiny", 0)
    examples, texts = kind.read(asked, store)
    (part,) = Sampler(examples, asked).step(0)
    method = kind(asked, load_model(asked, str(tmp_path / "tiny")), texts, 0, 1)
    batch = method.prepare(part)
    read = {name: one for name, one in batch.items() if isinstance(one, dict)}
    outputs = run(TorchEngine(method.model, asked, torch.device("cpu"), "fp32"), read)
    assert tuple(method.loss(outputs, batch).shape) == shape
