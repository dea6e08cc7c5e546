"""Draws the splits of judgements that a data set lacks from those that it has, so that every data set has train, dev and test."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.same_text import normalised
from raydense.data.shared_passages import groups_of
from raydense.data.splits import SHARES, FillBy, divided
from raydense.data.tables import one_column
from raydense.errors import InputError

_SEED = 0


def fill_splits(judged: dict[str, pa.Table], queries: pa.Table | None, by: FillBy = "questions") -> dict[str, pa.Table]:
    """The judgements with all of train, dev and test; `judged` has those of each split there is, with `query_id`, `passage_id` and `relevance`.

    The queries of the first split that is there are divided between it and those that are missing, 7 : 1 : 2, at random but always in
    the same way; the other splits stay as they are. Queries of one text (`same_text`) in `queries` (`query_id`, `text`)
    come into the same split, and what another split that is there asks, too, is not drawn. `by` passages, that is so of all questions that
    hang together by relevant passages (`groups_of`): a relevant passage of a drawn split is relevant in no other split.
    InputError if none of the three is there, or has too few queries, or groups too large for the shares.
    """
    parts = divided(list(judged))
    if not parts:
        has = f"only {', '.join(sorted(judged))}" if judged else "none"
        raise InputError(f"there are no judgements of {', '.join(SHARES)} to draw from: {has}", "fill_splits", "name one of them so")
    giver = parts[0]
    tables = [judged[giver], *(table for part, table in judged.items() if part != giver)]
    questions = questions_of(one_column([table["query_id"] for table in tables]), queries)
    of_giver, of_others = np.split(groups_of(questions, tables) if by == "passages" else questions, [len(judged[giver])])
    groups, place = np.unique(of_giver, return_inverse=True)
    sizes = np.bincount(place[np.unique(questions[: len(of_giver)], return_index=True)[1]], minlength=len(groups))
    free = np.flatnonzero(~np.isin(groups, of_others))
    piece = np.zeros(len(groups), np.int64)
    piece[free] = _drawn(sizes[free], parts, by)
    drawn = {part: judged[giver].filter(pa.array(piece[place] == number)) for number, part in enumerate(parts)}
    return {**judged, **drawn}


def _drawn(sizes: np.ndarray, parts: list[str], by: FillBy) -> np.ndarray:
    """The part of each group of so many questions: at random, but groups that are large beside the smallest part go where there is most room."""
    ends = np.cumsum([SHARES[part] for part in parts])
    wanted = np.diff(ends * sizes.sum() // ends[-1], prepend=0)
    if len(parts) > 1 and min(wanted) == 0:
        alone = "alone" if by == "questions" else "that do not hang together with another split by relevant passages"
        what = f"the {sizes.sum()} judged queries of {parts[0]} {alone} are too few to draw {' and '.join(parts[1:])} from them"
        raise InputError(what, "fill_splits", "judge more queries" if by == "questions" else "leave fill_by out, or judge more queries")
    piece, room = np.zeros(len(sizes), np.int64), wanted.copy()
    is_large = sizes > max(1, min(wanted) // 4)
    for group in np.flatnonzero(is_large)[np.argsort(-sizes[is_large], kind="stable")]:
        piece[group] = np.argmax(room)
        room[piece[group]] -= sizes[group]
    small = np.flatnonzero(~is_large)
    small = small[np.random.default_rng(_SEED).permutation(len(small))]
    left = np.cumsum(room.clip(0))
    middle = np.cumsum(sizes[small]) - (sizes[small] + 1) / 2
    piece[small] = np.searchsorted(left * sizes[small].sum() // max(1, left[-1]), middle, side="right")
    if (np.bincount(piece, sizes, len(parts)) < wanted / 2).any():
        raise _too_large(sizes, parts)
    return piece


def _too_large(sizes: np.ndarray, parts: list[str]) -> InputError:
    largest, whole = sizes.max(), sizes.sum()
    shares = " : ".join(str(SHARES[part]) for part in parts)
    what = (
        f"of {whole:,} questions of {parts[0]} the largest group that hangs together by shared relevant passages has {largest:,}"
        f" ({largest / whole:.0%}), so {', '.join(parts)} cannot be {shares}"
    )
    return InputError(what, "fill_by", "leave it out, which draws by questions, or judge queries of other passages")


def without_drawn(split: str, examples: pa.Table, drawn: dict[str, pa.Table], queries: pa.Table | None) -> pa.Table:
    """The examples of `split` without those that ask what was drawn into another split than that and train; a training would see its labels."""
    others = [table["query_id"] for part, table in drawn.items() if part not in (split, "train")]
    if not others:
        return examples
    of_examples, of_others = np.split(questions_of(one_column([examples["query_id"], *others]), queries), [len(examples)])
    return examples.filter(pa.array(~np.isin(of_examples, of_others)))


def questions_of(query_ids: pa.ChunkedArray, queries: pa.Table | None) -> np.ndarray:
    """A number of the question that each row is about; the number of its id where there are no texts."""
    ids = query_ids.combine_chunks().dictionary_encode()
    if queries is None:
        return ids.indices.to_numpy()
    texts = normalised(queries["text"].combine_chunks()).dictionary_encode().indices
    row = pc.index_in(ids.dictionary, value_set=queries["query_id"].combine_chunks())
    return texts.take(row).to_numpy()[ids.indices.to_numpy()]
