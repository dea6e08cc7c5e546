"""What answers and probabilities decide of each pair of an annotation, and the judgements that follow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.construction.agreement import majority
from raydense.construction.annotator_answers import UNSURE, AnnotatorAnswer
from raydense.data.store import Rows
from raydense.data.tables import one_column

Pair = tuple[str, str]
OPEN = -1
NOBODY, GOLD, HUMAN, MODEL = range(4)
SOURCES = ("", "gold", "human", "model")


@dataclass(frozen=True)
class Decided:
    """For each pair int64 relevance (1, 0, or -1: open) and who decided (a number into `SOURCES`); `disputed` are places of pairs, int64."""

    relevance: Rows
    source: Rows
    disputed: Rows


def decide(
    pairs: pa.Table, answers: list[AnnotatorAnswer], final: dict[Pair, tuple[int, str]], threshold: float | None, places: dict[Pair, int]
) -> Decided:
    """The decision on each pair of an annotation (`query_id`, `passage_id`, `score`, `judged`, `same_text_as`); `places` is where each is.

    People decide by more than half of their answers, and `final` in their place. A pair without such a majority is disputed, which is
    open: nothing changes for it. With a threshold, pairs that neither people nor the qrels judged are relevant above it. A repeat gets
    what the passage gets whose text it has.
    """
    n = len(pairs)
    relevance, source = np.full(n, OPEN), np.full(n, NOBODY)
    votes: dict[int, list[int]] = defaultdict(list)
    for answer in answers:
        votes[places[answer.pair]].append(answer.relevance)
    voted = {place: majority(of_pair) for place, of_pair in votes.items()}
    ruled = voted | {places[pair]: one for pair, (one, _) in final.items()}
    disputed = np.array(sorted(place for place, one in ruled.items() if one == UNSURE), dtype=np.int64)
    for place, one in ruled.items():
        if one != UNSURE:
            relevance[place], source[place] = one, HUMAN
    judged = pairs["judged"].to_numpy()  # NaN where the qrels say nothing
    repeat = pairs["same_text_as"].is_valid().to_numpy()
    if threshold is not None:
        free = (source == NOBODY) & np.isnan(judged.astype(np.float64)) & ~repeat
        free[disputed] = False
        taken = free & (pairs["score"].to_numpy() > threshold)
        relevance[taken], source[taken] = 1, MODEL
    at = np.flatnonzero(repeat)
    like = zip(pairs["query_id"].take(pa.array(at)).to_pylist(), pairs["same_text_as"].take(pa.array(at)).to_pylist(), strict=True)
    for place, pair in zip(at.tolist(), like, strict=True):
        of = places.get(pair, -1)
        if of >= 0 and source[of] != NOBODY:
            relevance[place], source[place] = relevance[of], source[of]
        elif of < 0 or judged[of] >= 1:  # only a known positive is repeated without being a pair itself
            relevance[place], source[place] = 1, GOLD
    return Decided(relevance, source, disputed)


def applied(qrels: pa.Table, pairs: pa.Table, decided: Decided) -> pa.Table:
    """The judgements after the decisions: `query_id`, `passage_id`, `relevance`, `before` (null: not judged then) and `source`.

    Queries come in the order of `qrels`, each one's old judgements first and then the new ones in the order of the pairs. An old
    judgement that people contradict gets relevance 1 or 0; one that they confirm keeps its grade. What a model or a repeat of a
    known positive decides never changes an old judgement.
    """
    query, passage = (_codes(qrels[name], pairs[name]) for name in ("query_id", "passage_id"))
    key = query * (int(passage.max(initial=0)) + 1) + passage
    old, new = key[: len(qrels)], key[len(qrels) :]
    relevance = qrels["relevance"].to_numpy().astype(np.int64)
    source = np.full(len(qrels), GOLD)
    at, found = _matches(old, new)
    there = relevance[at]
    said = decided.relevance[found]
    against = (decided.source[found] == HUMAN) & ((there >= 1) != (said == 1))
    after = relevance.copy()
    after[at[against]], source[at[against]] = said[against], HUMAN
    fresh = np.flatnonzero((decided.relevance != OPEN) & ~np.isin(new, old))
    added = pairs.take(pa.array(fresh))
    table = pa.table(
        {
            "query_id": one_column([qrels["query_id"], added["query_id"]]),
            "passage_id": one_column([qrels["passage_id"], added["passage_id"]]),
            "relevance": pa.array(np.concatenate([after, decided.relevance[fresh]]), pa.int32()),
            "before": pa.concat_arrays([pa.array(relevance, pa.int32()), pa.nulls(len(fresh), pa.int32())]),
            "source": pa.array(np.array(SOURCES)[np.concatenate([source, decided.source[fresh]])], pa.string()),
        }
    )
    order = np.argsort(np.concatenate([query[: len(qrels)], query[len(qrels) :][fresh]]), kind="stable")
    return table.take(pa.array(order))


def _codes(first: pa.ChunkedArray, second: pa.ChunkedArray) -> Rows:
    """A number for each id of both columns, rising by where it first is."""
    return one_column([first, second]).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)


def _matches(old: Rows, new: Rows) -> tuple[Rows, Rows]:
    """The places in `old` of keys that `new` has, and the place of each in `new`, whose keys are different."""
    if not len(new):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(new)
    place: NDArray[np.int64] = order[np.minimum(np.searchsorted(new[order], old), len(new) - 1)]
    at = np.flatnonzero(new[place] == old)
    return at, place[at]
