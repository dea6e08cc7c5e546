"""Groups of questions that hang together by relevant passages: two that share one, and those that others join."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def groups_of(questions: NDArray[np.int64], judged: Iterable[pa.Table]) -> NDArray[np.int64]:
    """The number of the group of each judgement's question, int64 [rows]; the groups are the components of the graph of questions and relevant passages.

    `questions` numbers the question of each row of the tables `judged`, one after another, which have `passage_id` and `relevance`.
    A passage of relevance 0 joins nothing, and a question without a relevant passage is a group of its own.
    """
    columns = [table.select(["passage_id", "relevance"]) for table in judged]
    table = pa.concat_tables([columns[0], *(other.cast(columns[0].schema) for other in columns[1:])])
    relevant = pc.greater_equal(table["relevance"], 1).to_numpy()
    passages = table["passage_id"].combine_chunks().dictionary_encode().indices.to_numpy()[relevant]
    of, first = questions[relevant], int(questions.max(initial=-1)) + 1
    nodes = first + int(passages.max(initial=-1)) + 1
    edges = coo_array((np.ones(len(of), np.int8), (of, first + passages.astype(np.int64))), shape=(nodes, nodes))
    _, group = connected_components(edges, directed=False)
    return group[questions].astype(np.int64)
