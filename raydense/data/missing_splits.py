"""Draws the splits of judgements that a data set lacks from those that it has, so that every data set has train, dev and test."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.same_text import normalised
from raydense.data.splits import SHARES, divided
from raydense.errors import InputError

_SEED = 0


def fill_splits(judged: dict[str, pa.Table], queries: pa.Table | None) -> dict[str, pa.Table]:
    """The judgements with all of train, dev and test; `judged` has those of each split there is, with `query_id`.

    The queries of the first split that is there are divided between it and those that are missing, 7 : 1 : 2, at random but always in
    the same way; the other splits stay as they are. Queries of one text (`same_text`) in `queries` (`query_id`, `text`)
    come into the same split, and what another split that is there asks, too, is not drawn.
    InputError if none of the three is there, or has too few queries.
    """
    parts = divided(list(judged))
    if not parts:
        has = f"only {', '.join(sorted(judged))}" if judged else "none"
        raise InputError(f"there are no judgements of {', '.join(SHARES)} to draw from: {has}", "fill_splits", "name one of them so")
    giver = parts[0]
    others = [judged[part]["query_id"] for part in judged if part != giver]
    of_giver, of_others = np.split(questions_of(_joined([judged[giver]["query_id"], *others]), queries), [len(judged[giver])])
    questions, place = np.unique(of_giver, return_inverse=True)
    free = np.flatnonzero(~np.isin(questions, of_others))
    shares = np.cumsum([SHARES[part] for part in parts])
    ends = shares * len(free) // shares[-1]
    if min(np.diff(ends, prepend=0)) == 0:
        what = f"the {len(free)} judged queries of {giver} alone are too few to draw {' and '.join(parts[1:])} from them"
        raise InputError(what, "fill_splits", "judge more queries")
    piece = np.zeros(len(questions), np.int64)
    piece[free[np.random.default_rng(_SEED).permutation(len(free))]] = np.searchsorted(ends, np.arange(len(free)), side="right")
    drawn = {part: judged[giver].filter(pa.array(piece[place] == number)) for number, part in enumerate(parts)}
    return {**judged, **drawn}


def without_drawn(split: str, examples: pa.Table, drawn: dict[str, pa.Table], queries: pa.Table | None) -> pa.Table:
    """The examples of `split` without those that ask what was drawn into another split than that and train; a training would see its labels."""
    others = [table["query_id"] for part, table in drawn.items() if part not in (split, "train")]
    if not others:
        return examples
    of_examples, of_others = np.split(questions_of(_joined([examples["query_id"], *others]), queries), [len(examples)])
    return examples.filter(pa.array(~np.isin(of_examples, of_others)))


def _joined(columns: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def questions_of(query_ids: pa.ChunkedArray, queries: pa.Table | None) -> np.ndarray:
    """A number of the question that each row is about; the number of its id where there are no texts."""
    ids = query_ids.combine_chunks().dictionary_encode()
    if queries is None:
        return ids.indices.to_numpy()
    texts = normalised(queries["text"].combine_chunks()).dictionary_encode().indices
    row = pc.index_in(ids.dictionary, value_set=queries["query_id"].combine_chunks())
    return texts.take(row).to_numpy()[ids.indices.to_numpy()]
