"""A part of a step's batch, as methods receive it: the queries, their drawn passages, and a teacher's scores of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raydense.training.ragged import Floats, Ints, Ragged


@dataclass(frozen=True)
class Part:
    """A part of a step, or one worker's slice of it, of b queries.

    `query` [b] is the position in the queries table; `positives` [b, m] and `negatives` [b, k] are corpus rows, -1 for a missing
    positive (never the first); `known` holds all positives of each query. In pre-training a query is a passage, and its own
    positive. `random_state` seeds everything else that is drawn at random for the part. `scores` float32 [b, m + k] are a teacher's
    scores of the positives and then the negatives, NaN for none; None if the examples have no scores.
    """

    query: Ints
    positives: Ints
    negatives: Ints
    known: Ragged
    random_state: int = 0
    scores: Floats | None = None

    def __len__(self) -> int:
        return len(self.query)

    @property
    def lists(self) -> Ints:
        """The rows of each query's list [b, 1 + k]: its first positive, then its negatives."""
        return np.concatenate([self.positives[:, :1], self.negatives], axis=1)

    def slice_of(self, rank: int, workers: int) -> Part:
        """The contiguous slice of worker `rank`."""
        share = len(self) // workers
        mine = np.arange(rank * share, (rank + 1) * share)
        scores = None if self.scores is None else self.scores[mine]
        return Part(self.query[mine], self.positives[mine], self.negatives[mine], self.known.take(mine), self.random_state, scores)
