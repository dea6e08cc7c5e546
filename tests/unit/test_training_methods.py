"""The objectives on one process, against NumPy's reading of the equations; the dev metric against ir-measures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from training_data import TrainingData, make_training_data

from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.models.joint import JointModel
from raydense.models.losses import listwise
from raydense.storage import Draft
from raydense.training.dev_sets import METRIC, OF_RERANKER, DevSet
from raydense.training.engine import TorchEngine
from raydense.training.method import Batch, Method, method_of
from raydense.training.methods.joint import Joint
from raydense.training.methods.multi_positive import MultiPositive
from raydense.training.methods.pair import Pair
from raydense.training.methods.reranker import Reranker, of_list
from raydense.training.methods.retriever import Retriever
from raydense.training.part import Part
from raydense.training.ragged import Ragged
from raydense.training.settings import TrainSettings
from raydense.training.step import run
from raydense.training.texts import Texts

# Rows 0 and 5 have the same text.
PASSAGES = ["the red fox", "cold winter rivers", "old bridges of stone", "a fever", "no one home", "the red fox"]
PART = Part(
    query=np.array([0, 1, 2]),
    positives=np.array([[0], [1], [2]]),
    negatives=np.array([[3, 4], [5, 3], [1, 0]]),
    known=Ragged(np.array([0, 1, 3, 2]), np.array([0, 1, 3, 4])),  # query 1 has two: 1 and 3
)
ROWS = [0, 1, 2, 3, 4, 5, 3, 1, 0]
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


def loss_of(method: Method, part: Part = PART) -> tuple[torch.Tensor, dict[str, torch.Tensor], Batch]:
    """The loss and metrics of a part, as the loop gets them, and the batch behind them."""
    batch = method.prepare(part)
    engine = TorchEngine(method.model, method.settings, torch.device("cpu"), "fp32")
    loss, metrics = method.loss(run(engine, {name: value for name, value in batch.items() if isinstance(value, dict)}), batch)
    return loss, metrics, batch


def vectors(model: DualEncoder, texts: Texts, part: Part, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Float64 vectors of a part's queries, and of the passages at `rows`."""
    with torch.no_grad():
        q = model.encode_queries(model.tokenize_queries(texts.queries(part.query)).pad(0)).double().numpy()
        p = model.encode_passages(model.tokenize_passages(texts.passages(np.array(rows))).pad(0)).double().numpy()
    return q, p


def share_first(scores: list[np.ndarray], positives: list[int], allowed: list[np.ndarray]) -> float:
    """Of lists of scores, the share whose highest is the positive's, among what is allowed and itself."""
    lists = zip(scores, positives, allowed, strict=True)
    return float(np.mean([np.where(kept | (np.arange(len(of)) == at), of, -np.inf).argmax() == at for of, at, kept in lists]))


def log_softmax_loss(scores: np.ndarray, positive: int, allowed: np.ndarray) -> float:
    """-log of the positive's share among what is allowed, and itself."""
    allowed = allowed.copy()
    allowed[positive] = True
    exponentials = np.exp(scores - scores[allowed].max())
    return -float(np.log(exponentials[positive] / exponentials[allowed].sum()))


@pytest.mark.parametrize("in_batch", [True, False])
def test_retriever_is_the_query_centric_loss_without_known_positives(tiny_folder: Path, three: Texts, in_batch: bool) -> None:
    model = DualEncoder.load(tiny_folder)
    method = Retriever(settings(negatives=2, temperature=0.5, in_batch=in_batch), model, three, 0, 1)
    loss, metrics, _ = loss_of(method)
    q, p = vectors(model, three, PART, ROWS)
    own = np.array([[1, 0, 0, 1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1, 1]], bool)
    allowed = ~KNOWN & (True if in_batch else own)
    each = [log_softmax_loss(q[i] @ p.T / 0.5, i, allowed[i]) for i in range(3)]
    assert loss.item() == pytest.approx(np.mean(each), rel=1e-5)
    best = [max(s for j, s in enumerate(q[i] @ p.T) if allowed[i, j] and j != i) for i in range(3)]
    assert float(metrics["accuracy"]) == pytest.approx(np.mean([q[i] @ p[i] > best[i] for i in range(3)]))


@pytest.mark.parametrize(("normalize", "temperature"), [(True, 0.05), (None, 1.0), (False, 1.0)])
def test_the_temperature_follows_the_vectors(tiny_folder: Path, three: Texts, normalize: bool | None, temperature: float) -> None:
    """By default, as with the temperature that suits vectors of length 1 (0.05) or of any length (1.0), whose value the output records."""
    model = DualEncoder.load(tiny_folder, normalize=normalize)

    def loss(**changes: Any) -> float:
        return loss_of(Retriever(settings(negatives=2, normalize=normalize, **changes), model, three, 0, 1))[0].item()

    assert loss() == loss(temperature=temperature)
    own = tiny_folder.parent / f"own-{normalize}"
    model.save(own)
    for folder, option in ((own, None), (tiny_folder, normalize), ("tiny", normalize)):
        asked = settings(model=str(folder), normalize=option)
        assert method_of(asked).completed(asked).temperature == temperature
    joint = settings(objective="joint", model=str(own), reranker=str(tiny_folder), negatives=2)
    assert method_of(joint).completed(joint).temperature == temperature
    given = settings(model=str(own), temperature=0.2)
    assert method_of(given).completed(given).temperature == 0.2


def test_masking_is_by_row_and_by_text(tiny_folder: Path, three: Texts) -> None:
    method = Retriever(settings(negatives=2), DualEncoder.load(tiny_folder), three, 0, 1)
    assert np.array_equal(method.prepare(PART)["known"].numpy(), KNOWN)


def test_workers_see_the_masks_of_one(tiny_folder: Path, three: Texts) -> None:
    """Cross-batch: a worker's columns are all workers' passages, worker by worker."""
    part = Part(PART.query[[0, 1]], PART.positives[[0, 1]], PART.negatives[[0, 1]], PART.known.take(np.array([0, 1])))
    model = DualEncoder.load(tiny_folder)
    one = Retriever(settings(batch_size=2, negatives=2), model, three, 0, 1).prepare(part)
    columns = [0, 2, 3, 1, 4, 5]  # of one worker's 0 1 | 3 4 5 3, in the order of two workers: 0 3 4 | 1 5 3
    for rank in (0, 1):
        mine = Retriever(settings(batch_size=2, workers=2, negatives=2), model, three, rank, 2).prepare(part)
        assert np.array_equal(mine["known"].numpy()[0], one["known"].numpy()[rank][columns])
        assert mine["positive"].tolist() == [rank * 3]


@pytest.mark.parametrize(("in_batch", "positives", "workers"), [(True, 1, 1), (True, 1, 2), (True, 2, 2), (False, 2, 1)])
def test_own_has_the_columns_of_each_querys_list(tiny_folder: Path, three: Texts, in_batch: bool, positives: int, workers: int) -> None:
    """Its positives and then its negatives, as the teacher's scores."""
    rows = np.array([[0, 5], [1, 3]])[:, :positives]
    part = Part(np.array([0, 1]), rows, PART.negatives[:2], PART.known.take(np.array([0, 1])))
    asked = settings(objective="multi-positive", batch_size=2, workers=workers, negatives=2, positives=positives, in_batch=in_batch)
    model = DualEncoder.load(tiny_folder)
    with torch.no_grad():
        alone = model.encode_passages(model.tokenize_passages(three.store.passages(np.arange(len(PASSAGES)))).pad(0))
        methods = [MultiPositive(asked, model, three, rank, workers) for rank in range(workers)]
        batches = [method.prepare(part) for method in methods]
        vectors = [run_alone(method, batch)[1] for method, batch in zip(methods, batches, strict=True)]
    for rank, batch in enumerate(batches):
        mine = part.slice_of(rank, workers)
        given = torch.cat(vectors) if in_batch else vectors[0].view(len(mine), -1, alone.shape[1])
        own = given[batch["own"]] if in_batch else given[torch.arange(len(mine))[:, None], batch["own"]]
        torch.testing.assert_close(own, alone[np.concatenate([mine.positives, mine.negatives], axis=1)])


def run_alone(method: Method, batch: Batch) -> tuple[torch.Tensor, ...]:
    """The outputs for a batch."""
    return run(
        TorchEngine(method.model, method.settings, torch.device("cpu"), "fp32"),
        {name: value for name, value in batch.items() if isinstance(value, dict)},
    )


def test_without_cross_batch_a_worker_compares_with_its_own_passages(tiny_folder: Path, three: Texts) -> None:
    """Two of two queries each: the second has row 3 in its batch, which is a known positive of its first query. No process is needed."""
    part = Part(
        query=np.array([2, 0, 1, 2]),
        positives=np.array([[2], [0], [1], [3]]),
        negatives=np.array([[1, 4], [3, 4], [5, 4], [4, 0]]),
        known=Ragged(np.array([2, 0, 1, 3, 3]), np.array([0, 1, 2, 4, 5])),
    )
    columns = [[2, 0, 1, 4, 3, 4], [1, 3, 5, 4, 4, 0]]
    known = np.array([[[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], [[1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]], bool)
    model = DualEncoder.load(tiny_folder)
    asked = settings(batch_size=4, workers=2, negatives=2, temperature=0.5, cross_batch=False)
    losses, expected = [], []
    for rank in (0, 1):
        losses.append(loss_of(Retriever(asked, model, three, rank, 2), part)[0].item())
        q, p = vectors(model, three, part.slice_of(rank, 2), columns[rank])
        expected.append(np.mean([log_softmax_loss(q[i] @ p.T / 0.5, i, ~known[rank, i]) for i in range(2)]))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert np.mean(losses) == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.parametrize("loss_name", ["listwise", "pointwise"])
def test_reranker_losses(tiny_folder: Path, three: Texts, loss_name: str) -> None:
    torch.manual_seed(0)
    model = CrossEncoder.load(tiny_folder)
    method = Reranker(settings(objective="reranker", loss=loss_name, negatives=2), model, three, 0, 1)
    loss, metrics, _ = loss_of(method)

    rows = np.concatenate([PART.positives, PART.negatives], axis=1)
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
    assert float(metrics["accuracy"]) == pytest.approx(share_first(list(scores), [0] * 3, list(~known)))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("in_batch_queries", [False, True])
def test_pair_is_both_losses(tiny_folder: Path, three: Texts, in_batch_queries: bool, shared: bool) -> None:
    """PAIR eq. 6 with its denominators written out: s(p+, p-) = E_P(p+) . E_P(p-) of the query's own and the in-batch negatives."""
    asked = settings(
        objective="pair",
        negatives=2,
        temperature=0.5,
        alpha=0.3,
        in_batch_queries=in_batch_queries,
        **({} if shared else {"shared": False}),
    )
    model = Pair.load(asked, str(tiny_folder))
    if not shared:  # both have the folder's weights: only different ones tell whose vectors are compared
        assert model.query_encoder is not None
        torch.manual_seed(5)
        with torch.no_grad():
            for weight in model.query_encoder.parameters():
                weight += 0.2 * torch.randn_like(weight)
    loss, metrics, _ = loss_of(Pair(asked, model, three, 0, 1))
    q, p = vectors(model, three, PART, ROWS)
    query_centric = np.mean([log_softmax_loss(q[i] @ p.T / 0.5, i, ~KNOWN[i]) for i in range(3)])
    each = []
    for i in range(3):
        scores, allowed = p[i] @ p.T, ~KNOWN[i]
        scores[i] = q[i] @ p[i]
        if in_batch_queries:  # row 1 is query 1's positive alone, 0 query 0's, 2 query 2's: no query is answered by another's
            scores, allowed = np.append(scores, p[i] @ q.T), np.append(allowed, np.arange(3) != i)
        each.append(log_softmax_loss(scores / 0.5, i, allowed))
    assert float(metrics["query_centric"]) == pytest.approx(query_centric, rel=1e-5)
    assert float(metrics["passage_centric"]) == pytest.approx(np.mean(each), rel=1e-5)
    assert loss.item() == pytest.approx(0.7 * query_centric + 0.3 * np.mean(each), rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx(share_first(list(q @ p.T), [0, 1, 2], list(~KNOWN)))


@pytest.mark.parametrize("asked", [{"objective": "pair"}, {"shared": True}])
def test_one_encoder_is_not_made_of_two(tiny_folder: Path, tmp_path: Path, asked: dict[str, Any]) -> None:
    DualEncoder.load(tiny_folder, shared=False).save(tmp_path)
    for read in (Retriever.check, Retriever.load):
        with pytest.raises(InputError, match="holds two separate encoders"):
            read(settings(**asked), str(tmp_path))
    assert Retriever.load(settings(), str(tmp_path)).query_encoder is not None


def test_a_query_that_the_positive_answers_is_not_pushed_from_it(tiny_folder: Path, three: Texts) -> None:
    part = Part(PART.query, np.array([[0], [1], [5]]), PART.negatives, Ragged(np.array([0, 1, 3, 5]), np.array([0, 1, 3, 4])))
    batch = Pair(settings(objective="pair", negatives=2, in_batch_queries=True), DualEncoder.load(tiny_folder), three, 0, 1).prepare(part)
    assert batch["answered"].tolist() == [[True, False, True], [False, True, False], [True, False, True]]  # 0 and 5 have one text


def test_several_positives_and_fewer(tiny_folder: Path, three: Texts) -> None:
    """Multiple positives eq. 3: query 1 has two positives, the others one; the places that fill up count nowhere."""
    part = Part(PART.query, np.array([[0, -1], [3, 1], [2, -1]]), PART.negatives[:, :1], PART.known)
    model = DualEncoder.load(tiny_folder)
    loss, metrics, batch = loss_of(
        MultiPositive(settings(objective="multi-positive", positives=2, negatives=1, temperature=0.5), model, three, 0, 1), part
    )
    rows = [0, 3, 1, 2, 3, 5, 1]  # what is there: positives 0 | 3 1 | 2, then negatives 3 5 1
    relevant = np.array([[1, 0, 0, 0, 0, 1, 0], [0, 1, 1, 0, 1, 0, 1], [0, 0, 0, 1, 0, 0, 0]], bool)
    q, p = vectors(model, three, part, rows)
    total = 0.0
    for i in range(3):
        share = np.exp(q[i] @ p.T / 0.5) / np.exp(q[i] @ p.T / 0.5).sum()
        sigmoid = 1 / (1 + np.exp(-share))
        total -= np.log(sigmoid[relevant[i]]).sum() + np.log(1 - sigmoid[~relevant[i]]).sum()
    assert loss.item() == pytest.approx(total / 3, rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx(share_first(list(q @ p.T), [0, 1, 3], list(~relevant)))
    assert batch["out"].tolist() == [False, True, False, False, False, True, False, False, False]
    assert batch["positive"].tolist() == [0, 2, 4]


def in_float64(model: JointModel, texts: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """What `JointModel.forward` gives, without its last step to float32, which finite differences could not see through."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not model.frozen):
        scores = model.reranker.model(**texts["pairs"]).logits.squeeze(-1)
    sides = []
    for name in ("queries", "passages"):
        states, mask = model.retriever.encoder(**texts[name]).last_hidden_state, texts[name]["attention_mask"].unsqueeze(-1)
        sides.append((states * mask).sum(dim=1) / mask.sum(dim=1))
    return (*sides, scores)


def joint(tiny_folder: Path, texts: Texts, **changes: Any) -> Joint:
    wanted = settings(objective="joint", reranker=str(tiny_folder), negatives=2, temperature=0.5, **changes)
    torch.manual_seed(3)
    return Joint(wanted, Joint.load(wanted, str(tiny_folder)), texts, 0, 1)


@pytest.mark.parametrize("changes", [{}, {"direction": "ce_de"}, {"loss": "pointwise"}, {"teacher": "static"}, {"in_batch": True}])
def test_joint_is_distillation_and_labels(tiny_folder: Path, three: Texts, changes: dict[str, Any]) -> None:
    method = joint(tiny_folder, three, **changes)
    loss, metrics, _ = loss_of(method)

    lists = [[0, 3, 4], [1, 5, 3], [2, 1, 0]]
    if changes.get("in_batch"):
        lists = [[*own, *(i for i in range(3) if i != at)] for at, own in enumerate(lists)]
    known = np.array([[row in {0: (0, 5), 1: (1, 3), 2: (2,)}[i] for row in rows] for i, rows in enumerate(lists)])
    distilled, labelled = [], []
    scores: list[list[np.ndarray]] = [[], []]
    for i, rows in enumerate(lists):
        q, p = vectors(method.model.retriever, three, PART, rows)
        with torch.no_grad():
            pairs = method.model.reranker.tokenize_pairs([three.queries(PART.query)[i]] * len(rows), three.passages(np.array(rows)))
            ce = method.model.reranker(pairs.pad(0)).double().numpy()
        kept = ~known[i] | (np.arange(len(rows)) == 0)
        scores[0].append(q[i] @ p.T)
        scores[1].append(ce)
        shares = [np.exp(s[kept]) / np.exp(s[kept]).sum() for s in (q[i] @ p.T / 0.5, ce)]
        first, second = shares if method.settings.direction == "de_ce" else shares[::-1]
        distilled.append((first * np.log(first / second)).sum())
        sigmoid = 1 / (1 + np.exp(-ce))
        pointwise = -np.where(known[i], np.log(sigmoid), np.log(1 - sigmoid)).mean()
        labelled.append(pointwise if changes.get("loss") == "pointwise" else -np.log(shares[1][0]))
    expected = np.mean(distilled) + (0 if changes.get("teacher") else np.mean(labelled))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    first = [share_first(of_model, [0] * 3, list(~known)) for of_model in scores]
    assert [float(metrics[name]) for name in ("accuracy", "reranker_accuracy")] == pytest.approx(first)
    assert first[0] != first[1], "the test tells them apart"


def test_a_dynamic_teacher_learns_from_the_retriever_and_a_static_one_does_not(tiny_folder: Path, three: Texts) -> None:
    """The gradient of L_KL alone, by finite differences, along a random direction through each model's weights."""
    for teacher in ("dynamic", "static"):
        method = joint(tiny_folder, three, teacher=teacher)
        model = method.model.double().train()
        batch = method.prepare(PART)

        def distilled(method: Joint = method, batch: Batch = batch) -> torch.Tensor:
            texts = {name: value for name, value in batch.items() if isinstance(value, dict)}
            outputs, relevant = in_float64(method.model, texts), batch["relevant"]
            whole = method.loss(outputs, batch)[0]
            return whole if method.model.frozen else whole - listwise(outputs[2].view(relevant.shape), of_list(relevant))

        distilled().backward()
        for part, learns in ((model.retriever, True), (model.reranker, teacher == "dynamic")):
            weights = [w for w in part.parameters() if w.grad is not None]
            assert bool(weights) == learns
            if learns:
                generator = torch.Generator().manual_seed(5)
                way = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in weights]
                along = sum(float((w.grad * v).sum()) for w, v in zip(weights, way, strict=True) if w.grad is not None)
                moved = []
                for sign in (1, -1):
                    with torch.no_grad():
                        for w, v in zip(weights, way, strict=True):
                            w.add_(v, alpha=sign * 1e-6)
                        moved.append(float(distilled()))
                        for w, v in zip(weights, way, strict=True):
                            w.sub_(v, alpha=sign * 1e-6)
                assert along == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-4)
                assert abs(along) > 1e-6


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
    store = PassageStore(data.root / "sample/corpus")
    qrels = read_table(data.root / "sample/qrels/dev", "qrels")
    run = write_dev_run(data, tmp_path / "run", 5)

    def dev_sets(passages: int = 60, **changes: Any) -> dict[str, DevSet]:
        dev = {"qrels": str(data.root / "sample/qrels/dev"), "run": run, "passages": passages}
        asked = data.settings(tmp_path / "o", dev=dev, **changes)
        return method_of(asked).dev_sets(asked, store)

    dev = dev_sets()[METRIC]
    positives = set(store.rows_of(qrels["passage_id"]).tolist())
    assert len(dev.rows) == 60
    assert len(set(dev.rows.tolist())) == 60
    assert positives | {0, 1, 2} <= set(dev.rows.tolist())
    assert len(dev.relevant.values) == qrels.num_rows
    assert len(dev_sets(passages=20)[METRIC].query) < 16

    again = dev_sets(objective="reranker", passages=1_000)[METRIC]
    assert again.absent is not None
    assert again.rows.shape == (16, 20)
    assert again.relevant_of(slice(None))[:, 1].all()
    assert again.absent.sum() == 16 * 15
    few = dev_sets(objective="reranker", passages=100)[METRIC]
    assert len(few.query) == 5
    both = dev_sets(objective="joint", reranker="r")
    assert list(both) == [METRIC, OF_RERANKER]
    assert np.array_equal(both[METRIC].rows, dev.rows)


def test_dev_settings_that_do_not_fit(data: TrainingData, tmp_path: Path) -> None:
    store, qrels = PassageStore(data.root / "sample/corpus"), str(data.root / "sample/qrels/dev")

    def dev_sets(**changes: Any) -> dict[str, DevSet]:
        asked = data.settings(tmp_path / "o", **changes)
        return method_of(asked).dev_sets(asked, store)

    with pytest.raises(InputError, match="needs candidates to order"):
        dev_sets(objective="reranker", dev={"qrels": qrels})
    with pytest.raises(InputError, match=r"dev\.qrels: missing"):
        dev_sets(dev={"run": qrels})
    assert dev_sets() == {}


@pytest.mark.parametrize(("objective", "length"), [("retriever", "passage_length"), ("reranker", "pair_length")])
def test_a_model_folder_is_looked_at_before_the_workers_start(tiny_folder: Path, tmp_path: Path, objective: str, length: str) -> None:
    def check(folder: Path, **changes: Any) -> None:
        asked = settings(objective=objective, **changes)
        method_of(asked).check(asked, str(folder))

    check(tiny_folder)
    with pytest.raises(InputError, match="1000 is more than the 512 positions"):
        check(tiny_folder, **{length: 1000})
    shutil.copytree(tiny_folder, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        check(tmp_path / "model")


def test_a_static_teacher_must_be_trained(tiny_folder: Path, tmp_path: Path) -> None:
    static = settings(objective="joint", reranker=str(tiny_folder), teacher="static")
    with pytest.raises(InputError, match="no trained re-ranker"):
        Joint.check(static, str(tiny_folder))
    CrossEncoder.load(tiny_folder).save(tmp_path)
    Joint.check(static.model_copy(update={"reranker": str(tmp_path)}), str(tiny_folder))


def test_dropout_of_a_static_teacher_is_refused(tiny_folder: Path) -> None:
    """It is never in training mode, and its folder would be saved with the new dropout."""
    with pytest.raises(InputError, match="a static teacher does not use dropout"):
        settings(objective="joint", reranker=str(tiny_folder), teacher="static", dropout=0.1)
    assert "dropout" not in Joint.Settings.takes({"teacher": "static"}), "a default of a recipe is not given to it"
    assert "dropout" in Joint.Settings.takes({})


@pytest.mark.parametrize(("teacher", "measured"), [("dynamic", {METRIC, OF_RERANKER}), ("static", {METRIC})])
def test_a_reranker_is_measured_where_it_learns(teacher: str, measured: set[str], data: TrainingData, tmp_path: Path) -> None:
    dev = {"qrels": str(data.root / "sample/qrels/dev"), "run": write_dev_run(data, tmp_path / "run", 5), "passages": 60}
    asked = data.settings(tmp_path / "o", objective="joint", reranker="r", teacher=teacher, dev=dev)
    assert method_of(asked).dev_sets(asked, PassageStore(data.root / "sample/corpus")).keys() == measured
