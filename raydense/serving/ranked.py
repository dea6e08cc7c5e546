"""The hits of some queries in their last order: fused, by a re-ranker where there is one, and cut; and their passages with ids and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.inference.reordering import reordered_lists
from raydense.retrieval.merge import Hits
from raydense.serving.searching import Known
from raydense.serving.searching_all import Found, ranks_in


@dataclass(frozen=True)
class Ranked:
    """The hits of n queries, the best first, and those of each index as it found them; `reranked` [n, k]: whose scores a re-ranker gave."""

    known: Known
    hits: Hits
    parts: tuple[Hits, ...]
    reranked: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, found: Found, which: slice = slice(None)) -> Ranked:
        """What was found, for some of the queries."""
        hits, *parts = ((scores[which], rows[which]) for scores, rows in (found.hits, *(answer.hits for answer in found.answers)))
        return cls(found.known, hits, tuple(parts))

    def by(self, logits: NDArray[np.float32]) -> Ranked:
        """The first m hits in the order of a re-ranker's logits float32 [n, m], the others below them; those others' scores depend on k."""
        rows = self.hits[1]
        took, scores = reordered_lists(rows, logits)
        return replace(self, hits=(scores, np.take_along_axis(rows, took, axis=1)), reranked=took < logits.shape[1])

    def cut(self, k: int) -> Ranked:
        """The first k of each query."""
        reranked = None if self.reranked is None else self.reranked[:, :k]
        return replace(self, hits=(self.hits[0][:, :k], self.hits[1][:, :k]), reranked=reranked)

    def each(self, k: int) -> list[Ranked]:
        """The first k that each index found."""
        return [replace(self, hits=part, reranked=None).cut(k) for part in self.parts]

    def passages(self, names: Sequence[str], corpus: PassageStore | None) -> list[list[dict[str, Any]]]:
        """The passages of each query: id, score, at which rank the indexes of `names` found it (without names not said), whether a re-ranker
        gave the score if there is one, and title and text by a corpus."""
        scores, rows = self.hits
        there = rows >= 0
        flat = rows[there]
        columns = {"id": self.known.ids.take(flat).to_pylist(), "score": scores[there].tolist()}
        if names:
            ranks = np.stack([ranks_in(rows, of_index)[there] for _, of_index in self.parts], axis=1).tolist()
            columns["found"] = [{name: rank for name, rank in zip(names, one, strict=True) if rank} for one in ranks]
        if self.reranked is not None:
            columns["reranked"] = self.reranked[there].tolist()
        if corpus is not None:
            columns |= corpus.take(flat, ["title", "text"]).to_pydict()
        passages = [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)]
        ends = np.cumsum(there.sum(axis=1)).tolist()
        return [passages[start:end] for start, end in zip([0, *ends], ends, strict=False)]
