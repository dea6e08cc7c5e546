"""Which passages of a pool people judge: the first by score whose texts differ from each other and from those of known positives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydense.data.store import Rows
from raydense.mining.negatives import among


@dataclass(frozen=True)
class Ranked:
    """The pairs that are listed, by query, then score falling, then row rising.

    `at` int64 are their places in the pool; `like` int64 is the row of the passage whose text a pair repeats, -1 for a pair to judge.
    """

    at: Rows
    like: Rows


def first_to_judge(
    query: Rows,
    row: Rows,
    score: NDArray[np.float64],
    text_hash: NDArray[np.uint64],
    known: tuple[Rows, Rows, NDArray[np.uint64]],
    keep: int,
) -> Ranked:
    """The first `keep` passages to judge of each query of a pool, and the repeats of a text between them.

    All arrays are [n], one element a pooled passage. `known` has the query, row and text hash of the known positives of these queries.
    A passage is a repeat if its text is that of a known positive, or of an earlier passage of its query; of the known positives of one
    text the first of the pool is judged. A repeat takes no place among the `keep`.
    """
    order = np.lexsort((row, -score, query))
    n = len(order)
    known_query, known_row, known_text = known
    queries = np.concatenate([query[order], known_query])
    rows = np.concatenate([row[order], known_row])
    texts = np.concatenate([text_hash[order], known_text])
    positive = np.zeros(len(rows), dtype=bool)
    positive[n:] = True
    positive[:n] = among(query[order], row[order], known_query, known_row)
    # of the passages of one query and text, the positives come first, those of the pool before others
    groups = np.lexsort((np.arange(len(rows)), ~positive, texts, queries))
    starts = np.ones(len(rows), dtype=bool)
    starts[1:] = (queries[groups][1:] != queries[groups][:-1]) | (texts[groups][1:] != texts[groups][:-1])
    first = np.empty(len(rows), dtype=np.int64)
    first[groups] = groups[starts][np.cumsum(starts) - 1]
    fresh = first[:n] == np.arange(n)
    before = np.cumsum(fresh) - fresh
    listed = before - before[np.searchsorted(queries[:n], queries[:n])] < keep
    like = np.where(fresh, -1, rows[first[:n]])
    return Ranked(order[listed], like[listed])
