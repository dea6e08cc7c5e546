"""The order of hits: the same whatever the sharding, ties by row, never a row that is not there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydense.errors import InputError
from raydense.retrieval.memory import MemoryPlan
from raydense.retrieval.merge import MARGIN, contenders, first_share, merge_hits, order_hits, rounding_bound, top_k, widened
from raydense.runtime.tasks import shard_ranges

Corpus = tuple[np.ndarray, int, int]


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    """Scores [queries, rows] with many ties, a number of shards and a k that may exceed the rows."""
    rows, queries = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    values = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 0.25, 1.0]), min_size=rows, max_size=rows)
    scores = np.array([draw(values) for _ in range(queries)], dtype=np.float32)
    return scores, draw(st.integers(1, rows)), draw(st.integers(1, 50))


def sort_everything(scores: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
    """The plain reading of the order: all pairs sorted, as Python sorts tuples."""
    return [sorted(((-float(s), row) for row, s in enumerate(line)))[:k] for line in scores]


def as_pairs(hits: tuple[np.ndarray, np.ndarray]) -> list[list[tuple[float, int]]]:
    return [[(-float(s), int(r)) for s, r in zip(*line, strict=True) if r >= 0] for line in zip(*hits, strict=True)]


@given(corpora())
def test_merged_shards_equal_sorting_everything(corpus: Corpus) -> None:
    scores, shards, k = corpus
    parts = []
    for start, stop in shard_ranges(scores.shape[1], shards):
        best = [top_k(line[start:stop], np.arange(start, stop), k) for line in scores]
        parts.append((np.stack([s for s, _ in best]), np.stack([r for _, r in best])))
    merged = merge_hits(parts, k)
    assert merged[0].shape == merged[1].shape == (len(scores), k)
    assert as_pairs(merged) == sort_everything(scores, k)


@given(corpora(), st.randoms(use_true_random=False))
def test_fillers_and_given_order_do_not_matter(corpus: Corpus, random: object) -> None:
    scores, fillers, k = corpus
    rows = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    padded = np.hstack([np.full((len(scores), fillers), 9.0, np.float32), scores]), np.hstack([np.full((len(scores), fillers), -1), rows])
    order = list(range(padded[0].shape[1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    best = order_hits(padded[0][:, order], padded[1][:, order], k)
    assert as_pairs(best) == sort_everything(scores, k)
    assert np.isneginf(best[0][best[1] < 0]).all()


HITS = st.tuples(
    st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-45, -1e-45]), st.floats(width=32, allow_nan=False)),
    st.one_of(st.integers(-1, 5), st.sampled_from([2**31, 2**32 - 2])),
)


@given(st.lists(HITS, min_size=1, max_size=20), st.integers(1, 25), st.booleans())
def test_any_score_and_row_has_its_place(hits: list[tuple[float, int]], k: int, larger: bool) -> None:
    """Also zeros of either sign, which tie, infinities, subnormal numbers, and rows beyond 32 bits."""
    hits += [(0.5, 2**32 - 1), (0.5, 2**40)] if larger else []
    hits = [(float(np.float32(score)), row) for score, row in hits]
    expected = sorted(((-score + 0.0, row) for score, row in hits if row >= 0))[:k]
    scores, rows = order_hits(np.array([[s for s, _ in hits]], np.float32), np.array([[r for _, r in hits]]), k)
    assert [(-s + 0.0, r) for s, r in zip(scores[0].tolist(), rows[0].tolist(), strict=True) if r >= 0] == expected
    assert (rows[0, len(expected) :] == -1).all()
    assert np.isneginf(scores[0, len(expected) :]).all()


def test_many_queries_are_ordered_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    scores, rows = rng.integers(0, 4, (50, 9)).astype(np.float32), rng.integers(-1, 9, (50, 9))
    whole = order_hits(scores, rows, 5)
    monkeypatch.setattr("raydense.retrieval.merge._AT_ONCE", 30)
    for part, expected in zip(order_hits(scores, rows, 5), whole, strict=True):
        np.testing.assert_array_equal(part, expected)


@given(corpora(), st.integers(1, 8), st.integers(0, 5))
def test_contenders_hold_the_best_of_the_true_scores(corpus: Corpus, share: int, seed: int) -> None:
    """Shards give a few hits, then k + 2 where they are open, with scores off by less than the bound: the true best k contend, or the query is open."""
    true, shards, k = corpus
    bound = np.full(len(true), 0.3, np.float32)
    rough = true + np.random.default_rng(seed).uniform(-0.29, 0.29, true.shape).astype(np.float32)
    ranges = shard_ranges(true.shape[1], shards)

    def ask(shard: int, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        start, stop = ranges[shard]
        scores = rough[queries, start:stop]
        order = np.argsort(-scores, axis=1)[:, :width]
        return np.take_along_axis(scores, order, axis=1), order + start

    def contend(parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        complete = [part[0].shape[1] == stop - start for part, (start, stop) in zip(parts, ranges, strict=True)]
        rows, open_ = contenders(parts, complete, k, bound)
        for line, wanted, is_open in zip(rows, sort_everything(true, k), open_.any(axis=0), strict=True):
            assert is_open or {row for _, row in wanted} <= set(line.tolist())
        return open_

    parts = [ask(shard, np.arange(len(true)), min(share, k + 2)) for shard in range(shards)]
    first = contend(parts)
    for shard in np.flatnonzero(first.any(axis=1)):
        again = np.flatnonzero(first[shard])
        parts[shard] = widened(parts[shard], again, ask(shard, again, k + 2))
    assert not (contend(parts) & ~first).any()


@given(corpora(), st.integers(1, 8), st.integers(0, 5))
def test_rescored_hits_are_the_best_where_nothing_is_open(corpus: Corpus, share: int, seed: int) -> None:
    """Shards give a few hits as rough scores order them, each with its true score: merged, they are the best of all."""
    true, shards, k = corpus
    bound = np.full(len(true), 0.3, np.float32)
    rough = true + np.random.default_rng(seed).uniform(-0.29, 0.29, true.shape).astype(np.float32)
    parts, complete = [], []
    for start, stop in shard_ranges(true.shape[1], shards):
        order = np.argsort(-rough[:, start:stop], axis=1)[:, :share] + start
        parts.append((np.take_along_axis(true, order, axis=1), order))
        complete.append(order.shape[1] == stop - start)
    settled = ~contenders(parts, complete, k, bound)[1].any(axis=0)
    merged, wanted = as_pairs(merge_hits(parts, k)), sort_everything(true, k)
    assert [merged[i] for i in np.flatnonzero(settled)] == [wanted[i] for i in np.flatnonzero(settled)]


@given(st.integers(1, 3_000), st.integers(1, 64))
def test_at_most_half_of_the_shards_are_asked_twice(k: int, shards: int) -> None:
    share = first_share(k, shards)
    assert share <= k + MARGIN
    assert share == k + MARGIN or k // share <= shards / 2


def test_rounding_bound_holds_for_two_ways_of_summing() -> None:
    rng = np.random.default_rng(0)
    for dimension in (3, 64, 385, 1_024):
        queries = rng.standard_normal((50, dimension)).astype(np.float32)
        vectors = rng.standard_normal((200, dimension)).astype(np.float32)
        apart = np.abs(queries @ vectors.T - np.cumsum(queries[:, None] * vectors[None], axis=2, dtype=np.float32)[:, :, -1])
        bound = rounding_bound(queries, float(np.linalg.norm(vectors, axis=1).max()))
        assert (apart <= bound[:, None]).all()
        assert bound.max() < 1e-2 * np.abs(queries @ vectors.T).max()


@given(st.integers(1, 1_000), st.integers(1, 50))
def test_shard_ranges_cover_all_rows_evenly(rows: int, shards: int) -> None:
    ranges = shard_ranges(rows, shards)
    lengths = [stop - start for start, stop in ranges]
    assert [r for start, stop in ranges for r in range(start, stop)] == list(range(rows))
    assert max(lengths) - min(lengths) <= 1


def test_a_memory_plan_fits_or_is_refused_with_a_fix() -> None:
    gib = 2**30
    MemoryPlan([3 * gib, 3 * gib], replicas=2).check([6 * gib, 6 * gib], "Flat")
    with pytest.raises(InputError, match=r"12.0 GiB in all.*2 nodes with 10.0 GiB.*more shards or nodes, factory SQfp16, fewer replicas"):
        MemoryPlan([3 * gib, 3 * gib], replicas=2).check([5 * gib, 5 * gib], "Flat")
    with pytest.raises(InputError, match=r"give more shards or nodes$"):
        MemoryPlan([7 * gib], replicas=1).check([6 * gib, 6 * gib], "IVF16,SQ8")


def test_memory_that_others_have_reserved_does_not_count() -> None:
    """Two pools that fit a cluster alone, but not together; the message separates what a swap's own old actors hold from what others hold."""
    gib = 2**30
    plan = MemoryPlan([3 * gib, 3 * gib], replicas=1)
    plan.check([8 * gib, 8 * gib], "Flat", free=[3 * gib, 3 * gib])
    with pytest.raises(
        InputError, match=r"2 nodes with 16.0 GiB, of which others have reserved 11.0 GiB; close a pool that is no longer needed, give"
    ):
        plan.check([8 * gib, 8 * gib], "Flat", free=[5 * gib, 0])
    plan.check([8 * gib, 8 * gib], "Flat", staying=[4 * gib, 4 * gib], free=[4 * gib, 4 * gib])
    with pytest.raises(InputError, match=r"next to 8.0 GiB of the current actors, .* others have reserved 3.0 GiB"):
        plan.check([8 * gib, 8 * gib], "Flat", staying=[4 * gib, 4 * gib], free=[1 * gib, 4 * gib])
