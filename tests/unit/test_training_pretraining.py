"""The loss of each method of pre-training as the loop gets it, from texts to the number, against NumPy's reading of the equations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from raydense.data.store import CorpusWriter, PassageStore
from raydense.models.masking import NOT_MASKED
from raydense.storage import Draft
from raydense.training.batches import Sampler
from raydense.training.contexts import Contexts
from raydense.training.method import load_model, method_of
from raydense.training.part import Part
from raydense.training.ragged import Ragged
from raydense.training.settings import PretrainSettings

# Documents of two passages each, so that the context of each passage is the other one, and all are in the batch: each text is there twice.
# Passages 4 and 6, of two documents, have the same text.
ROWS = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> PassageStore:
    writer = CorpusWriter(Draft.open(tmp_path_factory.mktemp("corpus") / "corpus", "corpus", {}), ROWS)
    passages = [texts[20 + 2 * i] for i in range(ROWS)]
    passages[6] = passages[4]
    names = [f"p{i}" for i in range(ROWS)]
    writer.add(pa.table({"passage_id": names, "title": [""] * ROWS, "text": passages, "doc_id": [f"d{i // 2}" for i in range(ROWS)]}))
    return PassageStore(writer.finish().path)


def log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


@pytest.mark.parametrize("method", ["mlm", "condenser", "cocondenser", "cotmae"])
def test_the_loss_is_the_sum_of_the_equations(store: PassageStore, tiny_folder: Path, method: str) -> None:
    paired = method in ("cocondenser", "cotmae")
    more = {"context": "passage"} if paired else {}
    more |= {"temperature": 0.5} if method == "cocondenser" else {}
    settings = PretrainSettings(
        method=method, model=str(tiny_folder), corpus=str(store.path), output="o", passage_length=64, batch_size=ROWS, dropout=0.0, **more
    )
    kind = method_of(settings)
    model = load_model(settings, str(tiny_folder)).eval()
    contexts = Contexts(store, more.get("context"))
    rows = np.arange(ROWS)
    part = Part(rows, rows[:, None], np.zeros((ROWS, 0), np.int64), Ragged(rows, np.arange(ROWS + 1)), random_state=5)
    trained = kind(settings, model, contexts, 0, 1)
    batch = trained.prepare(part)
    read = {name: value for name, value in batch.items() if isinstance(value, dict)}
    hidden = {name: int((one["labels"] != NOT_MASKED).sum()) for name, one in read.items()}
    shown = {name: int(one["attention_mask"].sum()) - 2 * ROWS for name, one in read.items()}  # without [CLS] and [SEP]
    for name, share in {"passages": settings.mask, "contexts": getattr(settings, "context_mask", 0.0)}.items():
        if name in read:
            assert hidden[name] == pytest.approx(share * shown[name], abs=4 * (share * (1 - share) * shown[name]) ** 0.5)
    with torch.no_grad():
        outputs = model(**read)
        loss, metrics = trained.loss(outputs, batch)
    found = [output.double().numpy() for output in outputs]
    assert [int(one[:, 0].sum()) for one in found] == list(hidden.values())

    if method == "cotmae":
        wanted = {"mlm": -found[0][:, 1].sum() / hidden["passages"], "context": -found[1][:, 1].sum() / hidden["contexts"]}
    else:  # one mean over all masked tokens, whichever text they are of
        tokens = sum(hidden.values())
        wanted = {"mlm": -sum(one[:, 1].sum() for one in found) / tokens}
        if method != "mlm":
            wanted["aux"] = -sum(one[:, 2].sum() for one in found) / tokens
    if method == "cocondenser":
        spans = np.concatenate([one[:, 3:] for one in found])
        texts = store.passages(rows)
        texts += [texts[row ^ 1] for row in rows]
        each = []
        for i in range(2 * ROWS):
            pair = (i + ROWS) % (2 * ROWS)
            kept = [pair] + [j for j in range(2 * ROWS) if j not in (i, pair) and texts[j] not in (texts[i], texts[pair])]
            each.append(-log_softmax(spans[kept] @ spans[i] / 0.5)[0])
            assert len(kept) == 1 + 2 * ROWS - (6 if {4, 6} & {i % ROWS, (i % ROWS) ^ 1} else 4)
        wanted["contrast"] = float(np.mean(each))
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(wanted, rel=1e-5)
    assert float(loss) == pytest.approx(sum(wanted.values()), rel=1e-5)


def test_the_tokens_of_a_passage_are_masked_anew_at_each_step(store: PassageStore, tiny_folder: Path) -> None:
    settings = PretrainSettings(method="mlm", model=str(tiny_folder), corpus=str(store.path), output="o", batch_size=ROWS // 2)
    kind = method_of(settings)
    examples, contexts = kind.read(settings, store)
    trained = kind(settings, load_model(settings, str(tiny_folder)), contexts, 0, 1)
    (first,), (second,) = (Sampler(examples, settings).step(step) for step in (0, 1))
    labels = [trained.prepare(part)["passages"]["labels"] for part in (first, replace(first, random_state=second.random_state), first)]
    assert torch.equal(labels[0], labels[2])
    assert not torch.equal(labels[0], labels[1])
