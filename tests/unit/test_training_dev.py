"""Dev metrics against a public tool's, and what a small dev set holds."""

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_measures
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import SCHEMAS, commit_table, read_table
from raydense.errors import InputError
from raydense.models.cross_encoder import CrossEncoder
from raydense.models.dual_encoder import DualEncoder
from raydense.storage import Draft
from raydense.training import dev as dev_of_training
from raydense.training import dev_sets
from raydense.training.dev import Dev, of_queries
from raydense.training.dev_sets import METRIC, METRICS, DevSet, read_dev_sets, relevant_columns, reranker_set, retriever_set
from raydense.training.engine import TorchEngine
from raydense.training.settings import DevSettings, TrainSettings
from raydense.training.texts import Texts

ENGINE = TrainSettings.read(
    {
        "objective": "retriever",
        "queries": "q",
        "corpus": "c",
        "examples": "e",
        "model": "m",
        "output": "o",
        "engine": {"name": "ddp"},
    }
)


def test_dev_metrics_equal_those_of_ir_measures() -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(40, 130)).astype(np.float32)
    relevant = rng.random((40, 130)) < 0.05
    qrels = [ir_measures.Qrel(str(q), str(p), int(relevant[q, p])) for q in range(40) for p in range(130)]
    run = [ir_measures.ScoredDoc(str(q), str(p), float(scores[q, p])) for q in range(40) for p in range(130)]
    measures = [ir_measures.RR @ 10, ir_measures.nDCG @ 10, ir_measures.R @ 100]
    expected = ir_measures.calc_aggregate(measures, qrels, run)
    found = of_queries(torch.from_numpy(scores), torch.from_numpy(relevant)).mean(dim=1)
    assert found.tolist() == pytest.approx([expected[measure] for measure in measures])


def test_ties_go_to_the_earlier_and_absent_ones_count_nothing() -> None:
    scores = torch.tensor([[1, 1, 0], [0, 0, 2], [-np.inf, 3, 1]])
    relevant = torch.tensor([[False, True, False], [False, False, True], [False, False, False]])
    assert of_queries(scores, relevant)[0].tolist() == [1 / 2, 1, 0]
    scores[1, 0] = np.nan
    assert of_queries(scores, relevant).isnan().any(dim=0).tolist() == [False, True, False]


@given(st.integers(1, 60), st.integers(10, 80), st.integers(0, 2**31))
def test_a_dev_set_always_has_hard_and_random_passages(queries: int, most: int, seed: int) -> None:
    """Whatever the number of dev queries: their positives take at most half, a run's first hits at most three quarters of the rest."""
    rng, corpus = np.random.default_rng(seed), 400
    at, rows = np.repeat(np.arange(queries), 2), rng.integers(100, size=2 * queries)
    run = np.repeat(np.arange(queries), 5), np.tile(np.arange(5), queries), 100 + rng.integers(100, size=5 * queries)
    dev = retriever_set(at, rows, run, most, corpus, np.random.default_rng(seed))
    kept, positives = set(dev.rows.tolist()), set(rows[np.isin(at, dev.query)].tolist())
    assert positives <= kept
    assert len(kept) == most == len(dev.rows)
    assert len(positives) <= max(most // 2, 2)
    of_run = kept & set(run[2][np.isin(run[0], dev.query)].tolist())
    assert of_run
    assert len(kept - positives - of_run) >= 1
    pairs = list(zip(dev.query[dev.relevant.owner], dev.rows[dev.relevant.values], strict=True))
    assert pairs == sorted({(q, r) for q, r in zip(at, rows, strict=True) if q in dev.query})
    if len(set(rows.tolist())) <= most // 2:
        assert len(dev.query) == min(queries, 2 * (most // 2))


def test_a_dev_set_is_as_large_as_its_judgements() -> None:
    """Not as its queries times its passages: each worker gets a copy, and holds it."""
    at, rows = np.repeat(np.arange(3_000), 2), np.random.default_rng(0).integers(2_000, size=6_000)
    dev = retriever_set(at, rows, None, 6_000, 10_000, np.random.default_rng(0))
    assert (len(dev.query), len(dev.rows)) == (3_000, 6_000)
    assert len(pickle.dumps(dev)) < 8 * (2 * len(dev.query) + len(dev.rows) + len(at)) + 10_000


def test_one_query_with_more_positives_than_passages_leaves_no_room_for_others() -> None:
    run = np.zeros(200, np.int64), np.arange(200), np.arange(100, 300)
    dev = retriever_set(np.zeros(40, np.int64), np.arange(40), run, 20, 400, np.random.default_rng(0))
    assert dev.rows.tolist() == list(range(40))


def test_queries_of_mix_are_measured_for_each_source(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The means of the sources, by the numbers of their queries, are the mean of all; each is that of its own queries alone. Other runs are refused."""
    model = DualEncoder.load(tiny_folder)
    texts = ["a red fox", "old bridges of stone", "fever in winter", "rivers freeze", "no one home", "causes"]
    ids = [f"{'ab'[n > 2]}:{n}" for n in range(6)]
    corpus = Draft.open(tmp_path / "corpus", "corpus", {})
    writer = CorpusWriter(corpus, 10)
    writer.add(pa.table({"passage_id": ids, "title": [""] * 6, "text": texts}))
    store = PassageStore(writer.finish().path)
    sources = pa.array(["a"] * 3 + ["b"] * 3)
    for name, kind, table in (
        ("queries", "queries", {"query_id": ids, "text": texts[3:] + texts[:3], "source": sources}),
        ("qrels", "qrels", {"query_id": ids, "passage_id": ids, "relevance": pa.array([1] * 6, pa.int32())}),
    ):
        draft = Draft.open(tmp_path / name, kind, {})
        commit_table(draft, f"{name}.parquet", pa.table(table))
        draft.finish(6)

    wrong = {"query_id": ids[:1], "passage_id": ids[1:2], "rank": pa.array([1], pa.int32()), "score": pa.array([1.0], pa.float32())}
    for name, table in (("run", wrong), ("none", {key: values[:0] for key, values in wrong.items()})):
        draft = Draft.open(tmp_path / name, "run", {})
        commit_table(draft, "run.parquet", pa.table(table, schema=SCHEMAS["run"]))
        draft.finish(1)
    for name, made, fault in (
        ("none", retriever_set, "has no query that is judged in"),
        ("run", reranker_set, "has no relevant passage among the first 20"),
    ):
        dev = DevSettings(qrels=str(tmp_path / "qrels"), run=str(tmp_path / name), passages=12)
        with pytest.raises(InputError, match=f"{name}: {fault}"):
            read_dev_sets(SimpleNamespace(dev=dev, queries=str(tmp_path / "queries"), seed=1), store, {METRIC: made})
    assert "train: 5 of 6 dev queries are not in" in capsys.readouterr().err
    draft = Draft.open(tmp_path / "elsewhere", "run", {})
    commit_table(draft, "run.parquet", pa.table(wrong, schema=SCHEMAS["run"]))
    draft.finish(1, corpus="f" * 64)
    dev = DevSettings(qrels=str(tmp_path / "qrels"), run=str(tmp_path / "elsewhere"), passages=12)
    with pytest.raises(InputError, match="elsewhere: was made with another corpus"):
        read_dev_sets(SimpleNamespace(dev=dev, queries=str(tmp_path / "queries"), seed=1), store, {METRIC: retriever_set})

    settings = SimpleNamespace(dev=DevSettings(qrels=str(tmp_path / "qrels"), passages=12), queries=str(tmp_path / "queries"), seed=1)
    whole = read_dev_sets(settings, store, {METRIC: retriever_set})[METRIC]
    engine = TorchEngine(model, ENGINE, torch.device("cpu"), "fp32")
    words = Texts(read_table(tmp_path / "queries", "queries"), store)
    found = Dev(whole, model, words, 0, 1).measure(engine)
    assert set(found) == {*METRICS, "mrr@10 of a", "mrr@10 of b"}
    for name, mine in whole.sources.items():
        alone = replace(whole, query=whole.query[mine], relevant=whole.relevant.take(np.flatnonzero(mine)), sources={})
        assert found[f"mrr@10 of {name}"] == pytest.approx(Dev(alone, model, words, 0, 1).measure(engine)[METRIC])
    assert found[METRIC] == pytest.approx((found["mrr@10 of a"] + found["mrr@10 of b"]) / 2)
    assert set(whole.sources) == {"a", "b"}


@pytest.mark.parametrize("block", [1, 50, 1 << 18])
def test_of_a_run_the_first_hits_of_judged_queries_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Whatever the blocks, and what other queries and further ranks the run has, of which a passage may even be unknown."""
    ids = [f"p{n}" for n in range(40)]
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {}), 100)
    writer.add(pa.table({"passage_id": ids, "title": [""] * 40, "text": ids}))
    writer.finish()
    rows = [(f"q{q}", ids[(q + rank) % 40], rank, -float(rank)) for q in range(8) for rank in range(1, 31)]
    rows += [("of another set", "of another corpus", 1, 0.0)]
    for name, kind, columns in (
        ("queries", "queries", {"query_id": [f"q{q}" for q in range(8)], "text": ["a text"] * 8}),
        ("qrels", "qrels", {"query_id": ["q6", "q2", "q6"], "passage_id": ["p1", "p2", "p3"], "relevance": [1] * 3}),
        ("run", "run", dict(zip(SCHEMAS["run"].names, map(list, zip(*rows, strict=True)), strict=True))),
    ):
        draft = Draft.open(tmp_path / name, kind, {})
        commit_table(draft, f"{name}.parquet", pa.table(columns))
        draft.finish(8)
    monkeypatch.setattr(dev_sets, "BLOCK_ROWS", block)
    dev = DevSettings(qrels=str(tmp_path / "qrels"), run=str(tmp_path / "run"), passages=1000)
    settings = SimpleNamespace(dev=dev, queries=str(tmp_path / "queries"), seed=1)
    runs: list[Any] = []

    def keep(at: Any, rows: Any, run: Any, *more: Any) -> DevSet:
        runs.append(run)
        return retriever_set(at, rows, run, *more)

    read_dev_sets(settings, PassageStore(tmp_path / "corpus"), {METRIC: keep})
    at, rank, found = runs[0]
    assert at.tolist() == [2] * 20 + [6] * 20
    assert rank.tolist() == [*range(20)] * 2
    assert found.tolist() == [(q + 1 + r) % 40 for q in (2, 6) for r in range(20)]


def test_dev_judgements_of_passages_that_the_corpus_lacks_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A query without another positive is no dev query; judgements of none of the passages are those of another corpus."""
    ids = [f"p{n}" for n in range(6)]
    writer = CorpusWriter(Draft.open(tmp_path / "corpus", "corpus", {}), 10)
    writer.add(pa.table({"passage_id": ids, "title": [""] * 6, "text": ids}))
    store = PassageStore(writer.finish().path)
    queries = {"query_id": ["a", "b", "c"], "text": ["a", "b", "c"]}
    some = {"query_id": ["a", "a", "b", "c"], "passage_id": ["p1", "gone", "lost", "p2"], "relevance": pa.array([1, 1, 1, 1], pa.int32())}
    none = {"query_id": ["a"], "passage_id": ["gone"], "relevance": pa.array([1], pa.int32())}
    for name, kind, table in (("queries", "queries", queries), ("some", "qrels", some), ("none", "qrels", none)):
        draft = Draft.open(tmp_path / name, kind, {})
        commit_table(draft, f"{name}.parquet", pa.table(table))
        draft.finish(len(table["query_id"]))

    def dev_set(qrels: str) -> DevSet:
        dev = DevSettings(qrels=str(tmp_path / qrels), passages=12)
        settings = SimpleNamespace(dev=dev, queries=str(tmp_path / "queries"), seed=1)
        return read_dev_sets(settings, store, {METRIC: retriever_set})[METRIC]

    found = dev_set("some")
    assert found.query.tolist() == [0, 2]
    assert [found.rows[row].tolist() for row in found.relevant_of(slice(None))] == [[1], [2]]
    assert f"train: 2 of 4 judgements of {tmp_path / 'some'} name passages that the corpus lacks: left out" in capsys.readouterr().err
    with pytest.raises(InputError, match="none: names passage 'gone'"):
        dev_set("none")


def texts_of(folder: Path, queries: list[str], passages: list[str]) -> Texts:
    """The queries, and a corpus of the passages."""
    writer = CorpusWriter(Draft.open(folder, "corpus", {}), len(passages))
    writer.add(pa.table({"passage_id": [f"p{n}" for n in range(len(passages))], "title": [""] * len(passages), "text": passages}))
    store = PassageStore(writer.finish().path)
    return Texts(pa.table({"query_id": [f"q{n}" for n in range(len(queries))], "text": queries}), store)


def some_texts(words: list[str], number: int, longest: int, seed: int) -> list[str]:
    """Texts of drawn words, of 4 to `longest`, so that none repeats; the lengths in no order."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, size=rng.integers(4, longest + 1))) for _ in range(number)]


def by_ir_measures(scores: dict[tuple[int, int], float], relevant: set[tuple[int, int]]) -> dict[str, float]:
    """The dev metrics of the scored pairs of a query and a passage, of which equal scores do not occur."""
    measures = dict(zip(METRICS, [ir_measures.RR @ 10, ir_measures.nDCG @ 10, ir_measures.R @ 100], strict=True))
    qrels = [ir_measures.Qrel(str(query), str(passage), 1) for query, passage in sorted(relevant)]
    run = [ir_measures.ScoredDoc(str(query), str(passage), score) for (query, passage), score in scores.items()]
    found = ir_measures.calc_aggregate(list(measures.values()), qrels, run)
    return {name: found[measure] for name, measure in measures.items()}


@pytest.mark.parametrize("queries_at_once", [2, 21])
def test_a_retriever_is_measured_as_sentence_transformers_ranks(
    tiny_folder: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries_at_once: int
) -> None:
    """Over more passages than a batch or the recall holds, of lengths in no order."""
    monkeypatch.setattr(dev_of_training, "_AT_ONCE", queries_at_once * 131)
    words = texts[-1].split()
    queries, passages = some_texts(words, 21, 9, 1), some_texts(words, 131, 40, 2)
    model = DualEncoder.load(tiny_folder)
    model.save(tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True)
    scores = theirs.encode(queries) @ theirs.encode(passages).T
    relevant = np.random.default_rng(3).random((21, 131)) < 0.03
    relevant[np.arange(21), np.arange(21)] = True
    dev = DevSet(np.arange(21), np.arange(131), relevant_columns(*relevant.nonzero(), 21))
    found = Dev(dev, model, texts_of(tmp_path / "corpus", queries, passages), 0, 1).measure(
        TorchEngine(model, ENGINE, torch.device("cpu"), "fp32")
    )
    expected = by_ir_measures(
        dict(np.ndenumerate(scores.astype(float))), set(zip(*map(np.ndarray.tolist, relevant.nonzero()), strict=True))
    )
    assert found == pytest.approx(expected, abs=1e-6)
    assert all(0 < value < 1 for value in found.values())


def test_a_reranker_is_measured_as_it_scores_each_pair_alone(tiny_folder: Path, texts: list[str], tmp_path: Path) -> None:
    """Queries with fewer than 20 hits too, which do not have row 0 among them: it would be the first."""
    words = texts[-1].split()
    queries, passages = some_texts(words, 9, 9, 1), some_texts(words, 40, 40, 2)
    torch.manual_seed(0)
    model = CrossEncoder.load(tiny_folder).eval()

    def score(query: str, passage: str) -> float:
        with torch.no_grad():
            return float(model(model.tokenize_pairs([query], [passage]).pad(model.tokenizer.pad_id))[0])

    best = int(np.argmax([score(queries[0], passage) for passage in passages]))
    passages[0], passages[best] = passages[best], passages[0]
    rng = np.random.default_rng(5)
    hits = {query: (1 + rng.permutation(39)[: [5, 20, 12][query % 3]]).tolist() for query in range(9)}
    relevant = {(query, hits[query][rank]) for query in range(9) for rank in ([0, 3] if query % 2 else [4])}
    at, rows = (np.array(column) for column in zip(*sorted(relevant), strict=True))
    run = tuple(np.array([(q, rank, row) for q, of in hits.items() for rank, row in enumerate(of)]).T)
    dev = reranker_set(at, rows, run, 1_000, 40, rng)
    found = Dev(dev, model, texts_of(tmp_path / "corpus", queries, passages), 0, 1).measure(
        TorchEngine(model, ENGINE, torch.device("cpu"), "fp32")
    )
    scores = {(query, row): score(queries[query], passages[row]) for query, of in hits.items() for row in of}
    assert score(queries[0], passages[0]) > max(value for (query, _), value in scores.items() if query == 0)
    expected = by_ir_measures(scores, relevant)
    assert found == pytest.approx({name: expected[name] for name in METRICS[:2]}, abs=1e-6)
    assert all(0 < value < 1 for value in found.values())


@pytest.mark.parametrize(("micro_batch", "most"), [(0, 64), (3, 12), (100, 64)])
def test_a_measurement_sends_few_texts_at_once_where_the_training_does(
    tiny_folder: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int, most: int
) -> None:
    """Four texts without gradients take less memory than one with them; the metrics are the same."""
    words = texts[-1].split()
    of_corpus = texts_of(tmp_path / "corpus", some_texts(words, 5, 9, 1), some_texts(words, 131, 40, 2))
    model, dev = DualEncoder.load(tiny_folder), DevSet(np.arange(5), np.arange(131), relevant_columns(np.arange(5), np.arange(5), 5))
    engine = TorchEngine(model, ENGINE, torch.device("cpu"), "fp32")
    expected, sent = Dev(dev, model, of_corpus, 0, 1).measure(engine), []
    forward = engine.forward
    monkeypatch.setattr(engine, "forward", lambda **batch: sent.extend(len(b["input_ids"]) for b in batch.values()) or forward(**batch))
    assert Dev(dev, model, of_corpus, 0, 1, micro_batch).measure(engine) == pytest.approx(expected)
    assert max(sent) == most
    assert sum(sent) == 5 + 131


def test_dev_scores_that_are_not_numbers_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    model = DualEncoder.load(tiny_folder)
    dev = DevSet(np.arange(2), np.arange(2), relevant_columns(np.arange(2), np.arange(2), 2))
    measured = Dev(dev, model, texts_of(tmp_path / "corpus", ["a", "b"], ["a red fox", "old bridges"]), 0, 1)
    engine = TorchEngine(model, ENGINE, torch.device("cpu"), "fp32")
    assert measured.measure(engine)
    with torch.no_grad():
        next(weight for weight in model.parameters() if weight.ndim > 1).fill_(torch.nan)
    with pytest.raises(InputError, match="the dev scores are not numbers; lower --lr"):
        measured.measure(engine)
