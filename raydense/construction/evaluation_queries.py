"""Training and evaluation queries with their texts, and which of the texts are the same (`same_text`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.same_text import normalised
from raydense.data.store import Rows
from raydense.data.tables import query_positions, read_table
from raydense.errors import InputError


@dataclass(frozen=True)
class Questions:
    """Queries by position: their ids and texts, string [n]."""

    ids: pa.Array
    texts: pa.Array

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, at: Rows) -> Questions:
        """The queries at some positions (int64 [m])."""
        return Questions(self.ids.take(pa.array(at)), self.texts.take(pa.array(at)))


@dataclass(frozen=True)
class EvaluationQueries:
    """The queries of all dev and test sets, one set after another; `split` int64 [n] is the number of each one's set in `names`."""

    names: list[str]
    split: Rows
    questions: Questions


def read_questions(train: str, against: dict[str, str], folder: str) -> tuple[Questions, EvaluationQueries]:
    """The queries of the training judgements and of those in `against`, by name, with their texts from the queries in `folder`.

    Each set is in the order of its judgements. InputError if a set judges nothing, names an unknown query, or one of another set.
    """
    queries = read_table(folder, "queries", ["query_id", "text"])
    places = [_judged(qrels, queries) for qrels in (train, *against.values())]
    owner = np.full(len(queries), -1)
    for number, (qrels, at) in enumerate(zip((train, *against.values()), places, strict=True)):
        if (shared := owner[at] >= 0).any():
            first = at[int(np.argmax(shared))]
            other = (train, *against.values())[owner[first]]
            what = f"judges query {queries['query_id'][int(first)].as_py()!r}, which {other} judges too"
            raise InputError(what, qrels, "judge each query in one set: a query must not be trained on and measured")
        owner[at] = number
    all_queries = Questions(queries["query_id"].combine_chunks(), queries["text"].combine_chunks())
    split = np.repeat(np.arange(len(against)), [len(at) for at in places[1:]])
    return all_queries.take(places[0]), EvaluationQueries([*against], split, all_queries.take(np.concatenate(places[1:])))


def _judged(qrels: str, queries: pa.Table) -> Rows:
    ids = pc.unique(read_table(qrels, "qrels", ["query_id"])["query_id"])
    if not len(ids):
        raise InputError("judges no query", qrels, "give judgements that name some")
    return query_positions(ids, queries, qrels)


@dataclass(frozen=True)
class Texts:
    """The different texts of some queries: `group` int64 [n] is the number of each query's text, in the order of first appearance."""

    group: Rows
    distinct: pa.Array

    @classmethod
    def of(cls, questions: Questions) -> Texts:
        words = normalised(questions.texts).dictionary_encode()
        return cls(words.indices.to_numpy().astype(np.int64), words.dictionary)

    @property
    def first(self) -> Rows:
        """The position of the first query of each text, rising: int64 [texts]."""
        return np.unique(self.group, return_index=True)[1]

    def numbers(self, questions: Questions) -> Rows:
        """The number of the text of each of some other queries, int64 [m]; -1 for a text that is not there."""
        found = pc.index_in(normalised(questions.texts), value_set=self.distinct)
        return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
