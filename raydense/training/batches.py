"""The batches of a run: which examples, which positive and which hard negatives each step sees, whatever the number of workers.

A step's batch is a pure function of (seed, epoch, step). A step has `accumulation` parts; a worker takes its contiguous slice
of each part, so that the negatives of a part come from the same queries for any number of workers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import positives_of, query_positions, read_table
from raydense.errors import InputError
from raydense.storage import Artifact
from raydense.training.settings import Training

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers of different lengths: list i is values[offsets[i]:offsets[i + 1]]. int64 [v], int64 [n + 1]."""

    values: Ints
    offsets: Ints

    @classmethod
    def of_column(cls, column: pa.ChunkedArray) -> Ragged:
        """The lists of an Arrow column; without a copy where it is one chunk."""
        lists = column.combine_chunks()
        lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
        return cls(lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy().astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def owner(self) -> Ints:
        """Which list each value is of: int64 [v], for lists whose values are packed."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, lists: Ints) -> Ragged:
        """The lists at these positions, packed."""
        lengths = self.offsets[lists + 1] - self.offsets[lists]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[lists] - offsets[:-1], lengths)
        return Ragged(self.values[at], offsets)

    def and_then(self, other: Ragged) -> Ragged:
        """These lists and then the other ones, packed."""
        a, b = (lists.take(np.arange(len(lists))) for lists in (self, other))
        return Ragged(np.concatenate([a.values, b.values]), np.concatenate([a.offsets, a.offsets[-1] + b.offsets[1:]]))

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """`count` different values of each packed list, drawn at random: int64 [n, count], -1 where a list has no more."""
        order = np.lexsort((rng.random(len(self.values)), self.owner))
        place = np.arange(count)
        drawn = self.values[order[np.minimum(self.offsets[:-1, None] + place, len(order) - 1)]]
        return np.where(place < self.lengths[:, None], drawn, -1)

    def first(self, count: int) -> Ints:
        """The first `count` values of each packed list: int64 [n, count], -1 where a list has no more."""
        place = np.arange(count)
        taken = self.values[np.minimum(self.offsets[:-1, None] + place, len(self.values) - 1)]
        return np.where(place < self.lengths[:, None], taken, -1)


@dataclass(frozen=True)
class Part:
    """A part of a step, or one worker's slice of it, of b queries.

    `query` [b] is the position in the queries table; `positives` [b, m] and `negatives` [b, k] are corpus rows, a place without
    a positive -1 (never the first); `known` holds all positives of each query. In pre-training a query is a passage, its own
    positive. `lot` is what else is to be drawn at random for the part is drawn from.
    """

    query: Ints
    positives: Ints
    negatives: Ints
    known: Ragged
    lot: int = 0

    def __len__(self) -> int:
        return len(self.query)

    def slice_of(self, rank: int, workers: int) -> Part:
        """The contiguous slice of worker `rank`."""
        share = len(self) // workers
        mine = np.arange(rank * share, (rank + 1) * share)
        return Part(self.query[mine], self.positives[mine], self.negatives[mine], self.known.take(mine), self.lot)


@dataclass(frozen=True)
class Examples:
    """Training examples, as arrays: the query's position [n], its positives and its hard negatives."""

    query: Ints
    positives: Ragged
    negatives: Ragged

    def __len__(self) -> int:
        return len(self.query)

    @cached_property
    def known(self) -> Ragged:
        """All positives of each example's query, those too that other examples of the same query have."""
        queries, number = np.unique(self.query, return_inverse=True)
        if len(queries) == len(self):
            return self.positives
        of_query = number[self.positives.owner]
        offsets = np.append(0, np.cumsum(np.bincount(of_query, minlength=len(queries))))
        return Ragged(self.positives.values[np.argsort(of_query, kind="stable")], offsets).take(number)

    def and_then(self, other: Examples) -> Examples:
        """These examples and then the other ones."""
        query = np.concatenate([self.query, other.query])
        return Examples(query, self.positives.and_then(other.positives), self.negatives.and_then(other.negatives))


def read_examples(path: str | os.PathLike[str], queries: pa.Table, store: PassageStore, negatives: int) -> Examples:
    """The examples artifact, or qrels as examples without negatives, checked against its queries and corpus.

    InputError on whatever training would trip over.
    """
    artifact = Artifact.open(path)
    if artifact.kind == "qrels":
        table = _of_qrels(path, store)
    else:
        store.refuse_rows_of_another(Artifact.open(path, "examples"))
        table = read_table(path, "examples", ["query_id", "positives", "negatives"])
    if not table.num_rows:
        raise InputError("no examples", path, "mine or import some")
    if artifact.kind == "qrels" and negatives:
        raise InputError("qrels hold no hard negatives", path, f"mine examples from a run, or give --negatives 0 (now {negatives})")
    examples = Examples(
        query_positions(table["query_id"], queries, path),
        Ragged.of_column(table["positives"]),
        Ragged.of_column(table["negatives"]),
    )
    _refuse_short(table, "positives", 1, path, "no positive", "remove them, or give qrels with relevance of at least 1")
    if negatives:
        fix = f"lower --negatives (now {negatives}), or mine again with --shortage drop"
        _refuse_short(table, "negatives", negatives, path, f"fewer than {negatives} negatives", fix)
    for name, lists in (("positives", examples.positives), ("negatives", examples.negatives)):
        _refuse_outside(table, name, lists, len(store), path)
    return examples


def _of_qrels(path: str | os.PathLike[str], store: PassageStore) -> pa.Table:
    """The judged queries in the order of their first judgement, each with the rows of its positives."""
    qrels = positives_of(read_table(path, "qrels"))
    rows = pa.array(store.known_rows(qrels["passage_id"], path)) if qrels.num_rows else pa.array([], pa.int64())
    table = pa.table({"query_id": qrels["query_id"].combine_chunks(), "row": rows})
    grouped = table.group_by("query_id", use_threads=False).aggregate([("row", "list")]).rename_columns(["query_id", "positives"])
    none = pa.array([[]] * grouped.num_rows, pa.list_(pa.int64()))
    return grouped.append_column("negatives", none)


def _refuse_short(table: pa.Table, name: str, least: int, path: object, what: str, fix: str) -> None:
    short = pc.less(pc.fill_null(pc.list_value_length(table[name]), 0), least)
    count = pc.sum(short).as_py() or 0
    if count:
        first = table["query_id"].filter(short)[0].as_py()
        raise InputError(f"{count:,} of {table.num_rows:,} queries have {what}, the first is {first!r}", path, fix)


def _refuse_outside(table: pa.Table, name: str, lists: Ragged, rows: int, path: object) -> None:
    wrong = np.flatnonzero((lists.values < 0) | (lists.values >= rows))
    if wrong.size:
        example = int(np.searchsorted(lists.offsets, wrong[0], side="right")) - 1
        query, row = table["query_id"][example].as_py(), int(lists.values[wrong[0]])
        raise InputError(f"{name} of query {query!r} name row {row}, the corpus has {rows:,}", path, "give the corpus it was made with")


class Sampler:
    """The order of the examples: `step(s)` is the global batch of step s, in parts. The last, incomplete batch of an epoch is dropped."""

    def __init__(self, examples: Examples, settings: Training) -> None:
        self.examples, self.batch_size, self.accumulation = examples, settings.batch_size, settings.accumulation
        self.positives, self.negatives, self.seed = settings.positives, settings.negatives, settings.seed
        self.draws_positives = settings.draw_positives
        self.steps_per_epoch = len(examples) // self.batch_size
        self._order = lru_cache(maxsize=1)(self._shuffled)
        if not self.steps_per_epoch:
            raise InputError(
                f"{len(examples):,} examples are fewer than one batch of {self.batch_size:,}",
                "batch_size",
                "lower it, or give more examples",
            )

    def steps(self, epochs: float, max_steps: int) -> int:
        """Steps of a run of so many epochs; `max_steps`, where not 0, is the number itself."""
        return max_steps or max(1, int(epochs * self.steps_per_epoch))

    def _shuffled(self, epoch: int) -> Ints:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))

    def step(self, step: int) -> list[Part]:
        """The global batch of `step` (counted over the whole run, from 0), in its parts."""
        epoch, at = divmod(step, self.steps_per_epoch)
        chosen = self._order(epoch)[at * self.batch_size : (at + 1) * self.batch_size]
        rng = np.random.default_rng([self.seed, epoch, at])
        listed = self.examples.positives.take(chosen)
        positives = listed.draw(self.positives, rng) if self.draws_positives else listed.first(self.positives)
        negatives = np.zeros((len(chosen), 0), np.int64)
        if self.negatives:
            negatives = self.examples.negatives.take(chosen).draw(self.negatives, rng)
        whole = Part(self.examples.query[chosen], positives, negatives, self.examples.known.take(chosen))
        lots = rng.integers(2**63, size=self.accumulation).tolist()
        return [replace(whole.slice_of(part, self.accumulation), lot=lot) for part, lot in enumerate(lots)]
