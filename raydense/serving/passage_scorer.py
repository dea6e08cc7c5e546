"""Scores passages of a corpus for questions by a re-ranker in this process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.inference.pair_scorer import pair_scorer

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


class PassageScorer:
    """Scores passages of a corpus, by their rows, for questions.

    InputError if the folder holds no re-ranker, or not the one of `fingerprint`, or the corpus was replaced.
    """

    def __init__(self, model: str, corpus: PassageStore, fingerprint: str | None = None, gpu: bool | None = None) -> None:
        self._corpus, self._score = corpus, pair_scorer(model, fingerprint, gpu)

    def __call__(self, questions: list[str], rows: Rows) -> Scores:
        """The logits of `rows` int64 [n, m] for n questions, float32 [n, m]; NaN for a row of -1."""
        return self.several([(questions, rows)])[0]

    def several(self, asked: list[tuple[list[str], Rows]]) -> list[Scores]:
        """As a call for each, all in one batch."""
        there = [rows >= 0 for _, rows in asked]
        texts = [questions[at] for (questions, _), some in zip(asked, there, strict=True) for at in np.nonzero(some)[0].tolist()]
        flat = np.concatenate([rows[some] for (_, rows), some in zip(asked, there, strict=True)])
        found = self._score(texts, self._corpus.passages(flat))
        parts = np.split(found, np.cumsum([some.sum() for some in there])[:-1])
        scores = [np.full(some.shape, np.nan, np.float32) for some in there]
        for whole, some, part in zip(scores, there, parts, strict=True):
            whole[some] = part
        return scores
