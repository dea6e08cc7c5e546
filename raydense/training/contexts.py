"""The input of pre-training: passages, and for each a context, drawn at random each time the passage is used.

The context of a passage is another passage of its document, one of the queries generated for it, or either (query-as-context,
section 3).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raydense.data.generated import Generated
from raydense.data.lookup import hash_strings
from raydense.data.store import PassageStore, Rows
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.training.examples import Examples
from raydense.training.ragged import Ragged


class Contexts:
    """The passages of a corpus with their contexts, by row."""

    def __init__(self, store: PassageStore, kind: str | None = None, generated: str | None = None) -> None:
        """InputError if the corpus or the generated queries have no contexts of the requested kind."""
        self.store, self.kind = store, kind
        self.generated = Generated(generated, store) if generated else None
        if self.kind in ("passage", "mixed") and "doc_id" not in store.slice(0, 1).column_names:
            raise InputError("has no doc_id", store.path, "context passage needs to know documents: give a corpus of `raydense split`")

    def examples(self, log: bool = False) -> Examples:
        """The passages that have a context, or all if no context is needed; with `log`, logs how many are left out."""
        rows = np.flatnonzero(self._has_passage() | (self._counted > 0)) if self.kind else np.arange(len(self.store))
        if log and len(rows) < len(self.store):
            say(f"pretrain: {len(self.store) - len(rows):,} of {len(self.store):,} passages have no context, and are left out")
        if not len(rows):
            raise InputError("no passage has a context", self.store.path, "generate queries, or give documents of several passages")
        each = np.arange(len(rows) + 1)
        return Examples(rows, Ragged(rows, each), Ragged(np.zeros(0, np.int64), np.zeros_like(each)))

    def passages(self, rows: Rows) -> list[str]:
        """The texts of the passages at `rows`."""
        return self.store.passages(rows)

    def draw(self, rows: Rows, random: NDArray[np.float64]) -> list[str]:
        """A context of each passage at `rows`; `random` float64 [n, 2] in [0, 1) chooses its kind, and which one of that kind."""
        query = self._counted[rows] > 0
        if self.kind == "mixed":
            query &= (random[:, 0] < 0.5) | (self._documents[3][rows] < 2)
        texts = np.empty(len(rows), dtype=object)
        if query.any():
            assert self.generated is not None
            texts[query] = self.generated.pick(rows[query], random[query, 1])
        if not query.all():
            texts[~query] = self.store.passages(self._siblings(rows[~query], random[~query, 1]))
        return texts.tolist()

    def _siblings(self, rows: Rows, random: NDArray[np.float64]) -> Rows:
        """Another passage of each passage's document."""
        order, place, first, size = self._documents
        others = (random * (size[rows] - 1)).astype(np.int64)
        others += others >= place[rows] - first[rows]
        return order[first[rows] + others]

    @cached_property
    def _documents(self) -> tuple[Rows, Rows, Rows, Rows]:
        """Rows ordered by document; and for each row its position in that order, the start of its document there, and the document's size."""
        names = np.concatenate([hash_strings(self.store.slice(a, b, ["doc_id"])["doc_id"]) for a, b in self.store.shards])
        order = np.argsort(names, kind="stable")
        _, starts, sizes = np.unique(names[order], return_index=True, return_counts=True)
        place, first, size = (np.empty(len(order), np.int64) for _ in range(3))
        place[order] = np.arange(len(order))
        first[order], size[order] = np.repeat(starts, sizes), np.repeat(sizes, sizes)
        return order, place, first, size

    def _has_passage(self) -> NDArray[np.bool_]:
        return self._documents[3] > 1 if self.kind in ("passage", "mixed") else np.zeros(len(self.store), dtype=bool)

    @cached_property
    def _counted(self) -> NDArray[np.int64]:
        return self.generated.counts() if self.generated is not None else np.zeros(len(self.store), np.int64)
