"""Searches of several callers as one: what is put together, and that each gets what it would have got alone."""

import threading
from collections import deque
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from raydense.retrieval.batching import Batching, Call, next_batch
from raydense.retrieval.bm25_shard import PARTS, Bm25Shard
from raydense.retrieval.kinds import bm25, faiss
from raydense.retrieval.placement import next_move


def call(queries: int, *how: int) -> Call:
    return Call((), queries, how)


def test_calls_that_ask_alike_are_put_together_up_to_a_number_of_queries() -> None:
    waiting = deque([call(3, 5), call(4, 5), call(3, 5), call(1, 9), call(1, 5), call(1, 5, True), call(2, 5, True), call(50, 5)])
    batches = []
    while waiting:
        batches.append([(one.queries, *one.how) for one in next_batch(waiting, 7)])
    assert batches == [[(3, 5), (4, 5)], [(3, 5)], [(1, 9)], [(1, 5)], [(1, 5, True), (2, 5, True)], [(50, 5)]]


def test_words_of_several_calls_are_those_of_one() -> None:
    parts = [
        (np.array([1, 2, 3], np.int32), np.array([0, 2, 3])),
        (np.array([], np.int32), np.array([0, 0])),
        (np.array([4]), np.array([0, 1])),
    ]
    words, starts = bm25.Kind.join(parts)
    assert [words[a:b].tolist() for a, b in pairwise(starts)] == [[1, 2], [3], [], [4]]


def test_bm25_of_several_calls_is_that_of_each(tmp_path: Path) -> None:
    """Passages share few words and few scores, so that ties are everywhere; the sums are the same to the last bit."""
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 30, 12)
    passages = [np.sort(rng.choice(60, count, replace=False)) for count in counts]
    arrays = {
        "passages": np.concatenate(passages),
        "scores": rng.integers(1, 4, counts.sum()) / np.float32(3),
        "starts": [0, *counts.cumsum()],
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"shard-00000.{name}.npy", np.asarray(array, np.float32 if name == "scores" else np.int64))
    shard = Bm25Shard([tmp_path / f"shard-00000.{part}.npy" for part in PARTS], 100, 160)
    lengths = [rng.integers(0, 5, queries) for queries in (1, 3, 2)]
    calls = [(rng.integers(0, 12, of.sum()).astype(np.int32), np.concatenate([[0], of.cumsum()])) for of in lengths]
    whole = shard.nearest(*bm25.Kind.join(calls), 7)
    alone = [shard.nearest(*call, 7) for call in calls]
    for part in (0, 1):
        np.testing.assert_array_equal(whole[part], np.concatenate([hits[part] for hits in alone]))
    assert (whole[1] >= 0).any()


def test_each_caller_gets_its_own_hits_and_the_calls_that_waited_are_one_search() -> None:
    vectors = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
    sizes: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def nearest(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        sizes.append(len(queries))
        entered.set()
        go_on.wait(60)
        scores = queries @ vectors.T
        rows = np.argsort(-scores, axis=1)[:, :k]
        return np.take_along_axis(scores, rows, axis=1), rows

    batching = Batching(nearest, faiss.Kind.join)
    queries = [vectors[i : i + 1 + i % 3] + 0.01 for i in range(9)]
    found: dict[int, np.ndarray] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: batching.ask((queries[i],), len(queries[i]), 3)[1]})) for i in range(9)]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    while batching._coming.qsize() < 8:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert sizes == [1, sum(map(len, queries[1:]))]
    assert sorted(found) == list(range(9))
    for i, rows in found.items():
        np.testing.assert_array_equal(rows, nearest(queries[i], 3)[1])


def test_a_search_that_fails_fails_its_callers_and_the_next_is_answered() -> None:
    def nearest(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if k == 0:
            raise ValueError("no k")
        return queries, queries

    batching = Batching(nearest, None)
    with pytest.raises(ValueError, match="no k"):
        batching.ask((np.zeros((1, 2)),), 1, 0)
    assert batching.ask((np.ones((1, 2)),), 1, 1)[0].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("placed", "nodes", "move"),
    [
        ({(0, 0): "a", (1, 0): "b"}, ["a", "b"], None),
        ({(0, 0): "a", (1, 0): "a"}, ["a", "b"], ((0, 0), "b")),
        ({(0, 0): "a", (1, 0): "a", (0, 1): "b"}, ["a", "b"], None),
        ({(0, 0): "a", (0, 1): "a", (1, 0): "b"}, ["a", "b"], ((0, 1), "b")),
        ({(0, 0): "a", (0, 1): "a"}, ["a"], None),
        ({(0, 0): "a", (0, 1): "a", (1, 0): "a", (1, 1): "b"}, ["a", "b"], ((0, 0), "b")),
        ({(0, 0): "a", (0, 1): "a", (1, 0): "b", (1, 1): "b"}, ["a", "b", "c"], ((1, 0), "c")),
        ({(0, 0): "head", (1, 0): "a"}, ["a"], None),
        ({(0, 0): "a"}, [], None),
    ],
)
def test_where_replicas_go_when_nodes_come(placed, nodes, move) -> None:
    assert next_move(placed, nodes) == move


@pytest.mark.parametrize(
    ("placed", "nodes", "move"),
    [
        ({(0, 0): "gpu", (1, 0): "a"}, ["a"], ((0, 0), "a")),  # whatever the numbers
        ({(0, 0): "gpu", (1, 0): "gpu", (2, 0): "v100", (3, 0): "a"}, ["a", "b"], ((2, 0), "b")),  # the node that is left soonest
        ({(0, 0): "gpu", (1, 0): "gpu", (0, 1): "a", (2, 0): "b"}, ["a", "b"], ((1, 0), "a")),  # replicas of a shard apart
        ({(0, 0): "gpu", (1, 0): "a", (2, 0): "a"}, ["a", "b"], ((0, 0), "b")),
        ({(0, 0): "a", (1, 0): "a"}, ["a", "b"], ((0, 0), "b")),
        ({(0, 0): "gpu"}, [], None),
    ],
)
def test_replicas_leave_nodes_that_they_would_keep_up(placed, nodes, move) -> None:
    assert next_move(placed, nodes, {"gpu", "v100"}) == move


def test_a_pool_on_nodes_with_gpus_goes_to_the_nodes_without() -> None:
    """Thirty-one actors that were spread over ten nodes with GPUs and four without."""
    gpus, without = [f"gpu{i}" for i in range(10)], [f"cpu{i}" for i in range(4)]
    placed = {(shard, 0): [*gpus, *without][shard % 14] for shard in range(31)}
    moves = 0
    while (move := next_move(placed, without, set(gpus))) is not None:
        placed[move[0]] = move[1]
        moves += 1
    load = [list(placed.values()).count(node) for node in without]
    assert (sum(load), max(load) - min(load)) == (31, 1)
    assert moves == 23, "none moves twice"


def test_moves_end_with_actors_spread_and_replicas_apart() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        nodes = [f"n{i}" for i in range(rng.integers(1, 6))]
        shards, replicas = rng.integers(1, 6), rng.integers(1, 4)
        placed = {(s, r): nodes[rng.integers(len(nodes))] for s in range(shards) for r in range(replicas)}
        for _ in range(100):
            move = next_move(placed, nodes)
            if move is None:
                break
            placed[move[0]] = move[1]
        assert move is None, "moves without end"
        load = [list(placed.values()).count(node) for node in nodes]
        assert max(load) - min(load) <= 1
