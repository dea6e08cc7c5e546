"""Which training queries ask the same as a dev or test query: those of the same text, and the candidates above a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydense.construction.evaluation_queries import Questions, Texts
from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.store import Rows
from raydense.inference.rerank import probability
from raydense.ranges import ranges
from raydense.storage import Artifact


@dataclass(frozen=True)
class CandidatePairs:
    """Scored candidates: positions of the asked query and of the training query's text int64 [n], similarities float64 [n]."""

    asked: Rows
    text: Rows
    similarity: NDArray[np.float64]

    def at(self, chosen: NDArray[np.bool_]) -> CandidatePairs:
        """Those that bool [n] marks."""
        return CandidatePairs(self.asked[chosen], self.text[chosen], self.similarity[chosen])


@dataclass(frozen=True)
class Pairs:
    """Pairs of an asked and a training query, by position int64 [n], of the same text or of some similarity float64 [n].

    By similarity falling, then by the positions of the asked and of the training query rising.
    """

    asked: Rows
    train: Rows
    similarity: NDArray[np.float64]
    same_text: NDArray[np.bool_]

    def at(self, chosen: NDArray[np.bool_]) -> Pairs:
        """Those that bool [n] marks."""
        return Pairs(self.asked[chosen], self.train[chosen], self.similarity[chosen], self.same_text[chosen])

    @property
    def removed(self) -> Rows:
        """The positions of the training queries, each once, rising."""
        return np.unique(self.train)

    @property
    def hit(self) -> Rows:
        """The positions of the asked queries, each once, rising."""
        return np.unique(self.asked)


def read_candidates(run: Artifact, asked: Questions, trained: Questions, logits: bool) -> CandidatePairs:
    """The candidates of a run whose passages are `trained`; `logits` become probabilities. Holds 24 bytes a hit."""
    queries, passages, found = IdLookup(asked.ids), IdLookup(trained.ids), []
    for block in query_blocks(run.parts(".parquet"), BLOCK_ROWS):
        score = block["score"].to_numpy().astype(np.float64)
        similarity = probability(score) if logits else score
        found.append((queries.positions_of_rows(block["query_id"]), passages.positions_of_rows(block["passage_id"]), similarity))
    if not found:
        return no_candidates()
    parts = zip(*found, strict=True)
    return CandidatePairs(*(np.concatenate(part) for part in parts))


def no_candidates() -> CandidatePairs:
    """None."""
    return CandidatePairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def without_same_text(found: CandidatePairs, own: Rows) -> CandidatePairs:
    """The candidates of another text than the asked query's, whose number `own` int64 [asked] has."""
    return found.at(own[found.asked] != found.text)


def similar_pairs(own: Rows, found: CandidatePairs, texts: Texts, threshold: float) -> Pairs:
    """The pairs of the same text, with the similarity 1, and of candidates of a similarity HIGHER than `threshold`.

    `own` int64 [asked] is the number among the training `texts` of each asked query's text, or -1; `found` has no candidate of that
    text. Of a training text come all queries that have it.
    """
    above = found.at(found.similarity > threshold)
    same = np.flatnonzero(own >= 0)
    asked, text = np.concatenate([same, above.asked]), np.concatenate([own[same], above.text])
    similarity = np.concatenate([np.ones(len(same)), above.similarity])
    by_text = np.argsort(texts.group, kind="stable")
    counts = np.bincount(texts.group, minlength=len(texts.distinct))
    each = counts[text]
    train = by_text[ranges((np.cumsum(counts) - counts)[text], each)]
    exact = np.repeat(np.arange(len(text)) < len(same), each)
    asked, similarity = np.repeat(asked, each), np.repeat(similarity, each)
    order = np.lexsort((train, asked, -similarity))
    return Pairs(asked[order], train[order], similarity[order], exact[order])
