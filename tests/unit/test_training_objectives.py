"""The objectives on one process, against NumPy's reading of the equations; the dev metric against ir-measures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pyarrow as pa
import pytest
import torch
from training_data import TrainingData, make_training_data

from raydense.data.artifact import Draft
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.settings import TrainSettings
from raydense.training.batches import Part, Ragged
from raydense.training.dev import mrr_at_10, read_dev_set
from raydense.training.objectives import Reranker, Retriever, Texts, check_model

# Rows 0 and 5 have the same text.
PASSAGES = ["the red fox", "cold winter rivers", "old bridges of stone", "a fever", "no one home", "the red fox"]
PART = Part(
    query=np.array([0, 1, 2]),
    positive=np.array([0, 1, 2]),
    negatives=np.array([[3, 4], [5, 3], [1, 0]]),
    known=Ragged(np.array([0, 1, 3, 2]), np.array([0, 1, 3, 4])),  # query 1 has two: 1 and 3
)
# Columns: positives 0 1 2, then 3 4 | 5 3 | 1 0. What is a known positive of each query, by row or by text:
KNOWN = np.array([[1, 0, 0, 0, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0]], bool)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    draft = Draft.open(tmp_path_factory.mktemp("corpus") / "corpus", "corpus", {})
    writer = CorpusWriter(draft, 4)
    ids = [f"p{i}" for i in range(len(PASSAGES))]
    writer.add(pa.table({"passage_id": ids, "title": [""] * len(ids), "text": PASSAGES}))
    queries = pa.table({"query_id": ["a", "b", "c"], "text": ["what fox", "when do rivers freeze", "who carries stone"]})
    return Texts(queries, PassageStore(writer.finish().path))


def settings(**changes: Any) -> TrainSettings:
    values = {"objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o", "batch_size": 3}
    return TrainSettings(**{**values, **changes})


def log_softmax_loss(scores: np.ndarray, positive: int, allowed: np.ndarray) -> float:
    """-log of the positive's share among what is allowed, and itself."""
    allowed = allowed.copy()
    allowed[positive] = True
    exponentials = np.exp(scores - scores[allowed].max())
    return -float(np.log(exponentials[positive] / exponentials[allowed].sum()))


@pytest.mark.parametrize("in_batch", [True, False])
def test_retriever_is_the_query_centric_loss_without_known_positives(tiny_folder: Path, three: Texts, in_batch: bool) -> None:
    model = DualEncoder.load(tiny_folder)
    objective = Retriever(settings(negatives=2, temperature=0.5, in_batch=in_batch), model, three, 0, 1)
    loss, metrics = objective.loss(model, objective.prepare(PART))

    rows = [0, 1, 2, 3, 4, 5, 3, 1, 0]
    with torch.no_grad():
        q = model.encode_queries(model.tokenize_queries(three.queries(PART.query)).pad(0)).double().numpy()
        p = model.encode_passages(model.tokenize_passages([PASSAGES[r] for r in rows]).pad(0)).double().numpy()
    own = np.array([[1, 0, 0, 1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1, 1]], bool)
    allowed = ~KNOWN & (True if in_batch else own)
    each = [log_softmax_loss(q[i] @ p.T / 0.5, i, allowed[i]) for i in range(3)]
    assert loss.item() == pytest.approx(np.mean(each), rel=1e-5)
    best = [max(s for j, s in enumerate(q[i] @ p.T) if allowed[i, j] and j != i) for i in range(3)]
    assert float(metrics["accuracy"]) == pytest.approx(np.mean([q[i] @ p[i] > best[i] for i in range(3)]))


def test_masking_is_by_row_and_by_text(tiny_folder: Path, three: Texts) -> None:
    objective = Retriever(settings(negatives=2), DualEncoder.load(tiny_folder), three, 0, 1)
    assert np.array_equal(objective.prepare(PART)["mask"].numpy(), KNOWN)


def test_workers_see_the_masks_of_one(tiny_folder: Path, three: Texts) -> None:
    """Cross-batch: a worker's columns are all workers' passages, worker by worker."""
    part = Part(PART.query[[0, 1]], PART.positive[[0, 1]], PART.negatives[[0, 1]], PART.known.take(np.array([0, 1])))
    model = DualEncoder.load(tiny_folder)
    one = Retriever(settings(batch_size=2, negatives=2), model, three, 0, 1).prepare(part)
    columns = [0, 2, 3, 1, 4, 5]  # of one worker's 0 1 | 3 4 5 3, in the order of two workers: 0 3 4 | 1 5 3
    for rank in (0, 1):
        mine = Retriever(settings(batch_size=2, workers=2, negatives=2), model, three, rank, 2).prepare(part)
        assert np.array_equal(mine["mask"].numpy()[0], one["mask"].numpy()[rank][columns])
        assert mine["positive"].tolist() == [rank * 3]


@pytest.mark.parametrize("loss_name", ["listwise", "pointwise"])
def test_reranker_losses(tiny_folder: Path, three: Texts, loss_name: str) -> None:
    torch.manual_seed(0)
    model = CrossEncoder.load(tiny_folder)
    objective = Reranker(settings(objective="reranker", loss=loss_name, negatives=2), model, three, 0, 1)
    loss, _ = objective.loss(model, objective.prepare(PART))

    rows = np.concatenate([PART.positive[:, None], PART.negatives], axis=1)
    known = np.array([[1, 0, 0], [1, 0, 1], [1, 0, 0]], bool)  # row 3 is a second positive of query 1
    with torch.no_grad():
        pairs = model.tokenize_pairs(np.repeat(three.queries(PART.query), 3).tolist(), three.passages(rows.ravel()))
        scores = model(pairs.pad(0)).double().numpy().reshape(3, 3)
    if loss_name == "listwise":
        expected = np.mean([log_softmax_loss(scores[i], 0, ~known[i]) for i in range(3)])
    else:
        probability = 1 / (1 + np.exp(-scores))
        expected = -np.mean(np.where(known, np.log(probability), np.log(1 - probability)))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_mrr_equals_ir_measures() -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(40, 30)).astype(np.float32)
    relevant = rng.random((40, 30)) < 0.05
    qrels = [ir_measures.Qrel(str(q), str(p), int(relevant[q, p])) for q in range(40) for p in range(30)]
    run = [ir_measures.ScoredDoc(str(q), str(p), float(scores[q, p])) for q in range(40) for p in range(30)]
    expected = ir_measures.calc_aggregate([ir_measures.RR @ 10], qrels, run)[ir_measures.RR @ 10]
    assert mrr_at_10(scores, relevant) == pytest.approx(expected)


def test_mrr_ties_go_to_the_earlier_and_absent_ones_count_nothing() -> None:
    scores = np.array([[1, 1, 0], [0, 0, 2], [-np.inf, 3, 1]], np.float32)
    relevant = np.array([[False, True, False], [False, False, True], [False, False, False]])
    assert mrr_at_10(scores, relevant) == pytest.approx((1 / 2 + 1 + 0) / 3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("training"))


def write_dev_run(data: TrainingData, folder: Path, depth: int) -> str:
    """Each dev query's first positive at its rank 2, others from the corpus's start."""
    qrels = read_table(data.root / "sample/qrels/dev", "qrels").to_pandas().drop_duplicates("query_id")
    ids = PassageStore(data.root / "sample/corpus").ids(np.arange(depth)).to_pylist()
    rows = []
    for query, positive in zip(qrels["query_id"], qrels["passage_id"], strict=True):
        others = [i for i in ids if i != positive]
        rows += [(query, p, rank, -float(rank)) for rank, p in enumerate([others[0], positive, *others[1:]][:depth], 1)]
    columns = dict(zip(["query_id", "passage_id", "rank", "score"], zip(*rows, strict=True), strict=True))
    draft = Draft.open(folder, "run", {})
    commit_table(draft, "run.parquet", pa.table({k: list(v) for k, v in columns.items()}))
    draft.finish(len(rows))
    return str(folder)


def test_dev_sets_hold_all_positives_and_the_runs_first(data: TrainingData, tmp_path: Path) -> None:
    queries, store = read_table(data.root / "sample/queries", "queries"), PassageStore(data.root / "sample/corpus")
    qrels = read_table(data.root / "sample/qrels/dev", "qrels")
    run = write_dev_run(data, tmp_path / "run", 5)
    wanted = data.settings(tmp_path / "o", dev_qrels=str(data.root / "sample/qrels/dev"), dev_run=run, dev_passages=60)
    dev = read_dev_set(wanted, queries, store)
    assert dev is not None
    positives = set(store.rows_of(qrels["passage_id"]).tolist())
    assert len(dev.rows) == 60
    assert len(set(dev.rows.tolist())) == 60
    assert positives | {0, 1, 2} <= set(dev.rows.tolist())
    assert int(dev.relevant.sum()) == qrels.num_rows

    again = read_dev_set(wanted.model_copy(update={"objective": "reranker", "dev_passages": 1_000}), queries, store)
    assert again is not None
    assert again.absent is not None
    assert again.rows.shape == (16, 20)
    assert again.relevant[:, 1].all()
    assert again.absent.sum() == 16 * 15
    few = read_dev_set(wanted.model_copy(update={"objective": "reranker", "dev_passages": 100}), queries, store)
    assert few is not None
    assert len(few.query) == 5


def test_dev_settings_that_do_not_fit(data: TrainingData, tmp_path: Path) -> None:
    queries, store = read_table(data.root / "sample/queries", "queries"), PassageStore(data.root / "sample/corpus")
    qrels = str(data.root / "sample/qrels/dev")
    with pytest.raises(InputError, match="needs candidates to order"):
        read_dev_set(data.settings(tmp_path / "o", objective="reranker", dev_qrels=qrels), queries, store)
    with pytest.raises(InputError, match="of no use without dev_qrels"):
        read_dev_set(data.settings(tmp_path / "o", dev_run=qrels), queries, store)
    assert read_dev_set(data.settings(tmp_path / "o"), queries, store) is None


@pytest.mark.parametrize("objective", ["retriever", "reranker"])
def test_a_model_folder_is_looked_at_before_the_workers_start(tiny_folder: Path, tmp_path: Path, objective: str) -> None:
    asked = {"objective": objective, "negatives": 1}
    check_model(settings(**asked), str(tiny_folder))
    with pytest.raises(InputError, match="1000 is more than the 512 positions"):
        check_model(settings(**asked, passage_length=1000), str(tiny_folder))
    shutil.copytree(tiny_folder, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        check_model(settings(**asked), str(tmp_path / "model"))
