"""The batches of training: pure in (seed, epoch, step), the same for any number of workers, drawn without replacement."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_data import TrainingData, make_training_data, write_examples

from raydense.data.store import PassageStore
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.storage import Draft
from raydense.training.batches import Sampler
from raydense.training.epochs import Epochs
from raydense.training.examples import Examples, read_examples, read_training_data
from raydense.training.known import known_positives
from raydense.training.method import method_of
from raydense.training.part import Part
from raydense.training.pieces import Cut
from raydense.training.prefetch import Prefetch
from raydense.training.ragged import Ragged
from raydense.training.settings import TrainSettings
from raydense.training.transfer import Transfer


def sampler_of(
    examples: Examples, batch_size: int, accumulation: int, negatives: int, seed: int, positives: int = 1, draw_positives: bool = True
) -> Sampler:
    given_ = {"batch_size": batch_size, "accumulation": accumulation, "negatives": negatives, "seed": seed, "positives": positives}
    given_["draw_positives"] = draw_positives
    folders = {"model": "tiny", "corpus": "c", "queries": "q", "examples": "e", "output": "o"}
    return Sampler(examples, TrainSettings(objective="multi-positive", **given_, **folders))  # type: ignore[arg-type]


def ragged(lists: list[list[int]]) -> Ragged:
    return Ragged.of_column(pa.chunked_array([pa.array(lists[:1], pa.list_(pa.int64())), pa.array(lists[1:], pa.list_(pa.int64()))]))


@st.composite
def samplers(draw: st.DrawFn) -> tuple[Sampler, int]:
    """A sampler over drawn examples, and a number of workers that fits it."""
    workers, accumulation = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    batch = workers * accumulation * draw(st.integers(1, 3))
    count = batch * draw(st.integers(1, 3)) + draw(st.integers(0, batch - 1))
    negatives = draw(st.integers(int(batch == accumulation), 3))  # a query alone in its part has no others
    lists = st.lists(st.integers(0, 10**6), min_size=max(1, negatives), max_size=6, unique=True)
    examples = Examples(
        np.arange(count) * 7,
        ragged(draw(st.lists(lists, min_size=count, max_size=count))),
        ragged(draw(st.lists(lists, min_size=count, max_size=count))),
    )
    return sampler_of(examples, batch, accumulation, negatives, draw(st.integers(0, 5)), draw(st.integers(1, 3))), workers


def same(a: Part, b: Part) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(arrays(a), arrays(b), strict=True))


def arrays(part: Part) -> list[np.ndarray]:
    return [part.query, part.positives, part.negatives, part.known.values, part.known.offsets]


@settings(max_examples=40)
@given(samplers(), st.integers(0, 20))
def test_a_step_is_a_pure_function_of_seed_epoch_and_step(made: tuple[Sampler, int], step: int) -> None:
    sampler, _ = made
    fresh = sampler_of(
        sampler.examples, sampler.batch_size, sampler.accumulation, sampler.draws.negatives, sampler.seed, sampler.draws.positives
    )
    for other in range(step):
        sampler.step(other)
    assert all(same(a, b) for a, b in zip(sampler.step(step), fresh.step(step), strict=True))


@settings(max_examples=40)
@given(samplers(), st.integers(0, 8))
def test_workers_slices_joined_are_the_global_batch(made: tuple[Sampler, int], step: int) -> None:
    sampler, workers = made
    for part in sampler.step(step):
        slices = [part.slice_of(rank, workers) for rank in range(workers)]
        for at, whole in enumerate(arrays(part)[:4]):
            assert np.array_equal(np.concatenate([arrays(s)[at] for s in slices]), whole)
        assert len({len(s) for s in slices}) == 1


@settings(max_examples=40)
@given(samplers(), st.integers(0, 2))
def test_an_epoch_sees_an_example_at_most_once_with_its_own_passages(made: tuple[Sampler, int], epoch: int) -> None:
    sampler, _ = made
    parts = [p for s in range(sampler.steps_per_epoch) for p in sampler.step(epoch * sampler.steps_per_epoch + s)]
    queries = np.concatenate([p.query for p in parts])
    assert Counter(queries.tolist()).most_common(1)[0][1] == 1
    assert len(queries) == len(sampler.examples) // sampler.batch_size * sampler.batch_size
    for part in parts:
        for at, query in enumerate(part.query // 7):
            positives, negatives = (
                lists.take(np.array([query])).values for lists in (sampler.examples.positives, sampler.examples.negatives)
            )
            drawn = part.positives[at][part.positives[at] >= 0].tolist()
            assert set(drawn) <= set(positives.tolist())
            assert len(drawn) == len(set(drawn)) == min(sampler.draws.positives, len(positives))
            assert part.positives[at, 0] >= 0
            assert set(part.negatives[at].tolist()) <= set(negatives.tolist())
            assert len(set(part.negatives[at].tolist())) == sampler.draws.negatives
            assert np.array_equal(part.known.take(np.array([at])).values, positives)


def test_positives_are_known_to_all_examples_of_their_query() -> None:
    examples = Examples(np.array([7, 3, 7, 5]), ragged([[1, 2], [9], [4], [6]]), ragged([[0]] * 4))
    known = [examples.known.take(np.array([at])).values.tolist() for at in range(4)]
    assert known == [[1, 2, 4], [9], [1, 2, 4], [6]]
    (part,) = sampler_of(examples, 4, 1, 1, 0).step(0)
    wanted = {7: {1, 2, 4}, 3: {9}, 5: {6}}
    assert [set(part.known.take(np.array([at])).values.tolist()) for at in range(4)] == [wanted[query] for query in part.query]
    drawn = [(query, row) for query, rows in zip(part.query, part.positives, strict=True) for row in rows]
    assert sorted(query for query, _ in drawn) == [3, 5, 7, 7]
    of_seven = {row for query, row in drawn if query == 7}
    assert of_seven in ({1, 4}, {2, 4})


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(0, 40), st.integers(1, 12))
def test_known_positives_are_those_of_a_dense_comparison(seed: int, queries: int, columns: int, texts: int) -> None:
    """By row or by equal text, of which there are few."""
    rng = np.random.default_rng(seed)
    text_hash = rng.integers(2**60, size=texts, dtype=np.uint64)[rng.integers(texts, size=30)]
    known = ragged([rng.integers(30, size=rng.integers(1, 5)).tolist() for _ in range(queries)])
    rows = rng.integers(30, size=columns)
    part = Part(np.arange(queries), rows[:0], rows[:0], known)
    wanted = [np.isin(text_hash[rows], text_hash[known.values[a:b]]) for a, b in pairwise(known.offsets)]
    np.testing.assert_array_equal(known_positives(part, rows, text_hash), np.array(wanted).reshape(queries, columns))


def test_one_question_under_two_ids_has_the_positives_of_both(data: TrainingData, tmp_path: Path) -> None:
    queries = pa.table({"query_id": ["a", "b", "c"], "text": ["who?", "where?", "who?"]})
    draft = Draft.open(tmp_path / "queries", "queries", {"stage": "test"})
    commit_table(draft, "queries.parquet", queries)
    draft.finish(3)
    store = PassageStore(data.root / "sample/corpus")
    write_examples(tmp_path / "examples", ["a", "b", "c"], [[3], [4], [5]], [[7], [8], [9]], corpus=store.fingerprint)
    asked = data.settings(tmp_path / "o", queries=str(tmp_path / "queries"), examples=str(tmp_path / "examples"))
    examples, texts = read_training_data(asked, store, 1, False)
    known = [sorted(examples.known.values[a:b].tolist()) for a, b in pairwise(examples.known.offsets)]
    assert known == [[3, 5], [4], [3, 5]]
    assert texts.queries(examples.query) == ["who?", "where?", "who?"]
    assert [examples.positives.values[a] for a in examples.positives.offsets[:-1]] == [3, 4, 5]


def test_what_else_is_drawn_for_a_part_differs_from_part_to_part() -> None:
    """Masks and contexts are: in each step of each epoch others, and the same when the step is made again."""
    examples = Examples(np.arange(25), ragged([[i] for i in range(25)]), ragged([[1, 2]] * 25))
    once, again = ([part.random_state for step in range(6) for part in sampler_of(examples, 8, 2, 1, 3).step(step)] for _ in range(2))
    assert once == again
    assert len(set(once)) == len(once) == 12


def test_epochs_differ_in_order_and_draw() -> None:
    examples = Examples(np.arange(64), ragged([[i, i + 1000] for i in range(64)]), ragged([list(range(8))] * 64))
    sampler = sampler_of(examples, 64, 1, 2, 3)
    (first,), (second,) = sampler.step(0), sampler.step(1)
    assert not np.array_equal(first.query, second.query)
    drawn = [
        dict(zip(p.query.tolist(), zip(p.positives[:, 0].tolist(), map(tuple, p.negatives.tolist()), strict=True), strict=True))
        for p in (first, second)
    ]
    assert drawn[0] != drawn[1]


def test_threads_that_begin_an_epoch_make_its_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, order = [], Epochs.order

    def slow(epochs: Epochs, epoch: int) -> np.ndarray:
        made.append(epoch)
        time.sleep(0.2)
        return order(epochs, epoch)

    monkeypatch.setattr(Epochs, "order", slow)
    sampler = sampler_of(Examples(np.arange(24), ragged([[i] for i in range(24)]), ragged([[1, 2]] * 24)), 4, 1, 1, 3)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(sampler.step, range(12)))
    assert made == [0, 1]


def test_positives_that_are_not_drawn_are_the_first_listed() -> None:
    examples = Examples(np.arange(4), ragged([[5, 3, 9], [7], [4, 2], [8, 1, 6, 0]]), ragged([[10, 11]] * 4))
    drawn = sampler_of(examples, 4, 1, 1, 3, positives=3)
    first = sampler_of(examples, 4, 1, 1, 3, positives=3, draw_positives=False)
    for step in range(3):
        (part,) = first.step(step)
        listed = dict(zip(part.query.tolist(), part.positives.tolist(), strict=True))
        assert listed == {0: [5, 3, 9], 1: [7, -1, -1], 2: [4, 2, -1], 3: [8, 1, 6]}
        assert np.array_equal(part.query, drawn.step(step)[0].query)


def test_negatives_are_drawn_evenly() -> None:
    examples = Examples(np.arange(100), ragged([[0]] * 100), ragged([[1, 2, 3, 4]] * 100))
    sampler = sampler_of(examples, 100, 1, 1, 0)
    counts = np.bincount(np.concatenate([sampler.step(s)[0].negatives.ravel() for s in range(40)]), minlength=5)[1:]
    assert (np.abs(counts - 1000) < 150).all()  # five standard deviations are 137


def test_negatives_with_weights_are_drawn_as_one_after_another_of_those_left() -> None:
    lists = ragged([[1, 2, 3], [4, 5, 6, 7]] * 2000)
    weights = np.array([0, 1.0, 2, 3, 4, 5, 6, 7])[lists.values]
    drawn, _ = lists.draw(2, np.random.default_rng(0), np.log(weights) - 900 * (lists.owner % 2))
    for first, second in ((3, 1), (2, 3), (7, 6), (4, 5)):
        of_list = drawn[0 if first < 4 else 1 :: 2]
        total = 6 if first < 4 else 22
        expected = first / total * second / (total - first)
        assert ((of_list == [first, second]).all(axis=1)).mean() == pytest.approx(expected, abs=5 * (expected / 2000) ** 0.5)
    alike = lists.draw(2, np.random.default_rng(0), np.full(len(weights), 7.0))[0]
    assert np.array_equal(alike, lists.draw(2, np.random.default_rng(0))[0])


def test_run_length() -> None:
    examples = Examples(np.arange(25), ragged([[0]] * 25), ragged([[1]] * 25))
    sampler = sampler_of(examples, 10, 1, 1, 0)
    assert (sampler.steps(3, 0), sampler.steps(1.5, 0), sampler.steps(0.1, 0), sampler.steps(3, 50)) == (6, 3, 1, 50)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return make_training_data(tmp_path_factory.mktemp("training"))


@pytest.mark.parametrize(
    ("stage", "advice"),
    [
        ("mine", "or mine again with --min-negatives 1 --shortage drop"),
        ("label", "or label again with --min-negatives 1 --shortage drop"),
        ("import", "or leave these queries out of what it was made from"),
    ],
)
def test_the_advice_on_too_few_negatives_fits_what_made_the_examples(data: TrainingData, tmp_path: Path, stage: str, advice: str) -> None:
    queries = read_table(data.root / "sample/queries", "queries")
    write_examples(tmp_path / "examples", queries["query_id"].to_pylist()[:1], [[0]], [[]], stage)
    with pytest.raises(InputError, match=rf"lower --negatives \(now 1\), {advice}$"):
        read_examples(tmp_path / "examples", queries, PassageStore(data.root / "sample/corpus"), 1)


@pytest.mark.parametrize(
    ("positives", "negatives", "summary", "message"),
    [
        ([[0], []], [[1], [2]], {}, "1 of 2 queries have no positive, the first is 'train-1'"),
        ([[0], [1]], [[1], []], {}, "1 of 2 queries have fewer than 1 negatives, the first is 'train-1'; .*examples; lower --negatives"),
        ([[0], [1]], [[1], [99999]], {}, "negatives of query 'train-1' name row 99999, the corpus has"),
        ([[0], [-1]], [[1], [2]], {}, "positives of query 'train-1' name row -1"),
        ([[0], [1]], [[1], [2]], {"corpus": "other-corpus"}, "was made with another corpus"),
    ],
)
def test_examples_that_training_would_trip_over(
    data: TrainingData, tmp_path: Path, positives: list, negatives: list, summary: dict, message: str
) -> None:
    queries = read_table(data.root / "sample/queries", "queries")
    ids = queries["query_id"].to_pylist()[:2]
    write_examples(tmp_path / "examples", ids, positives, negatives, **summary)
    store = PassageStore(data.root / "sample/corpus")
    expected = message.replace("train-1", ids[1]).split("; ")
    with pytest.raises(InputError) as caught:
        read_examples(tmp_path / "examples", queries, store, 1)
    line = str(caught.value)
    assert expected[0] in line
    assert expected[-1] in line


def test_examples_of_an_unknown_query_or_none_at_all(data: TrainingData, tmp_path: Path) -> None:
    queries, store = read_table(data.root / "sample/queries", "queries"), PassageStore(data.root / "sample/corpus")
    write_examples(tmp_path / "unknown", ["nobody"], [[0]], [[1]])
    with pytest.raises(InputError, match="names query 'nobody'"):
        read_examples(tmp_path / "unknown", queries, store, 1)
    write_examples(tmp_path / "none", [], [], [])
    with pytest.raises(InputError, match="no examples"):
        read_examples(tmp_path / "none", queries, store, 1)


def test_fewer_examples_than_a_batch() -> None:
    with pytest.raises(InputError, match="3 examples are fewer than one batch of 4"):
        sampler_of(Examples(np.arange(3), ragged([[0]] * 3), ragged([[1]] * 3)), 4, 1, 1, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_in_order_and_errors_at_their_step(threads: int) -> None:
    assert list(Prefetch(lambda step: step * step, threads).range(2, 9)) == [(s, s * s) for s in range(2, 9)]

    made = Prefetch(lambda step: 1 // (3 - step), threads).range(0, 9)
    assert [next(made)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(made)


def test_three_steps_are_made_ahead_and_no_more() -> None:
    begun: queue.Queue[int] = queue.Queue()
    made = Prefetch(begun.put).range(0, 9)
    for step in range(3):
        assert next(made)[0] == step
    assert [begun.get(timeout=60) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    made.close()
    assert begun.empty()


def test_several_threads_make_several_at_the_same_time() -> None:
    together = threading.Barrier(3)
    assert [step for step, _ in Prefetch(lambda step: together.wait(60), 3).range(0, 6)] == list(range(6))


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
)
def test_batches_arrive_on_the_device_as_they_were(device: str) -> None:
    there = Transfer(torch.device(device))

    def part(step: int) -> Cut:
        values = torch.full((1_000, 1_000), step)
        return Cut([{"passages": {"input_ids": values}}], [{"positive": values[0]}], tokens=0, places=(values[0].clone(),))

    for step, sent in Prefetch(lambda step: there.send([part(step)]), 3).range(0, 20):
        (arrived,) = there.receive(sent)
        assert len(arrived.tensors()) == 3
        assert all(one.device.type == device and bool((one == step).all()) for one in arrived.tensors())


def test_what_a_step_waits_for_its_batch_is_counted_the_first_apart() -> None:
    asked = threading.Event()
    batches = Prefetch(lambda step: step == 0 or asked.wait(60))
    made = batches.range(0, 2)
    next(made)
    assert batches.waited == 0
    began = time.perf_counter()
    asked.set()
    next(made)
    assert 0 < batches.waited < time.perf_counter() - began


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4), st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4))
def test_lists_and_then_others(a: list[list[int]], b: list[list[int]]) -> None:
    joined = ragged([[99], *a]).take(np.arange(1, 1 + len(a))).and_then(ragged(b))
    assert [joined.values[i:j].tolist() for i, j in zip(joined.offsets[:-1], joined.offsets[1:], strict=True)] == a + b


def test_more_examples_come_after_the_first(data: TrainingData, tmp_path: Path) -> None:
    """Each query of both is there twice, with either's negatives; the positives of both are known of it, and so are no negatives."""
    store, queries = PassageStore(data.root / "sample/corpus"), read_table(data.root / "sample/queries", "queries")
    some = read_table(data.root / "examples", "examples").slice(0, 10)
    names = some["query_id"].to_pylist()
    write_examples(tmp_path / "more", names, [[i] for i in range(10)], [[100 + i] for i in range(10)], corpus=store.fingerprint)
    asked = data.settings(tmp_path / "model", more_examples=str(tmp_path / "more"), negatives=1)
    both, _ = method_of(asked).read(asked, store)
    alone, _ = method_of(asked).read(data.settings(tmp_path / "model", negatives=1), store)
    assert len(both) == len(alone) + 10
    assert both.query[: len(alone)].tolist() == alone.query.tolist()
    assert [queries["query_id"][at].as_py() for at in both.query[len(alone) :]] == names
    last = both.negatives.take(np.arange(len(alone), len(both)))
    assert last.values.tolist() == list(range(100, 110))
    known = both.known.take(np.array([len(alone) + 3, alone.query.tolist().index(both.query[len(alone) + 3])]))
    first, second = np.split(known.values, known.offsets[1:-1])
    assert sorted(first) == sorted(second)
    assert 3 in first
    with pytest.raises(InputError, match="does not use more_examples"):
        data.settings(tmp_path / "model", more_examples=str(tmp_path / "more"), refresh={"every": 2})


def test_qrels_are_examples_of_the_relevant_passages_without_negatives(data: TrainingData, tmp_path: Path) -> None:
    """A judgement of relevance 0 makes no positive, and a query with no other judgement no example."""
    store, queries = PassageStore(data.root / "sample/corpus"), read_table(data.root / "sample/queries", "queries")
    ids = queries["query_id"].to_pylist()[:3]
    judged = [(ids[1], 5, 1), (ids[0], 7, 0), (ids[1], 6, 0), (ids[2], 8, 0), (ids[0], 9, 2), (ids[1], 4, 1)]
    names = store.ids(np.array([row for _, row, _ in judged]))
    table = {"query_id": [query for query, _, _ in judged], "passage_id": names, "relevance": pa.array([r for *_, r in judged], pa.int32())}
    draft = Draft.open(tmp_path / "qrels", "qrels", {"stage": "test"})
    commit_table(draft, "qrels.parquet", pa.table(table))
    draft.finish(len(judged))
    examples = read_examples(tmp_path / "qrels", queries, store, 0)
    assert examples.query.tolist() == [1, 0]
    assert [examples.positives.values[a:b].tolist() for a, b in pairwise(examples.positives.offsets)] == [[5, 4], [9]]
    assert examples.negatives.lengths.tolist() == [0, 0]
    with pytest.raises(InputError, match=r"/qrels: .*no hard negatives"):
        read_examples(tmp_path / "qrels", queries, store, 1)
