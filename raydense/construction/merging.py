"""Makes one of questions and of passages of the same text, across all blocks of an input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.same_text import normalised
from raydense.data.tables import first_repeated
from raydense.errors import InputError

_HELD_OUT = ["test", "dev", "train"]  # a question of several splits belongs to the first of these that it has
_NO_SPLIT = "train"
_DIGITS = 32  # of a passage id


@dataclass(frozen=True)
class Merged:
    """The questions of an input, those of one text as one.

    `queries` has `query_id`, `text`, `answers` and `split`, in the order of the input; `of_block` the row of `queries` for each question
    of each block; `repeated` questions are those merged into an earlier one, `moved` those that came to another split by it.
    """

    queries: pa.Table
    of_block: list[NDArray[np.int64]]
    repeated: int
    moved: int
    _where: pa.ChunkedArray

    def pairs(self, passages: Iterable[pa.Table]) -> pa.Table:
        """The positive pairs as `query_id`, `passage_id`, `relevance` (1) and `split`, each once, by the order of queries, then of passages.

        `passages` are those of each block, with `question`, `passage_id` and `f1`.
        """
        found = []
        for table, rows in zip(passages, self.of_block, strict=True):
            positive = table.filter(pc.greater(table["f1"], 0))
            found.append(pa.table({"row": rows[positive["question"].to_numpy()], "passage_id": positive["passage_id"]}))
        whole = pa.concat_tables(found)
        order = pa.array(np.argsort(whole["row"].to_numpy(), kind="stable"))
        once = whole.take(order).group_by(["row", "passage_id"], use_threads=False).aggregate([])
        of = self.queries.take(once["row"])
        relevance = pa.array(np.ones(once.num_rows, np.int32))
        return pa.table({"query_id": of["query_id"], "passage_id": once["passage_id"], "relevance": relevance, "split": of["split"]})

    def dropped(self, kept: pa.Array) -> Iterator[dict[str, Any]]:
        """The questions that are not among the `kept` ids, with where they are in the input and why they are not."""
        mask = pc.invert(pc.is_in(self.queries["query_id"], value_set=kept))
        for query, where in zip(self.queries.filter(mask).to_pylist(), self._where.filter(mask).to_pylist(), strict=True):
            why = "no passage is positive" if query["answers"] else "no answer"
            yield {"question_id": query["query_id"], "question": query["text"], "split": query["split"], "where": where, "why": why}


def merge_questions(blocks: list[pa.Table]) -> Merged:
    """The questions of all blocks; InputError on an id that two questions have, with the place of both.

    Texts are equal whatever their case, white space, blanks before punctuation and width (NFKC). The first has the id and the text; the answers are those of all.
    """
    whole = pa.concat_tables(blocks)
    _refuse_repeated(whole)
    text = normalised(whole["question"].combine_chunks())
    first, row = _first_places(text.dictionary_encode().indices.to_numpy())
    queries = pa.table(
        {
            "query_id": whole["question_id"].take(pa.array(first)),
            "text": pc.utf8_trim_whitespace(whole["question"].take(pa.array(first))),
            "answers": _all_answers(whole["answers"], row, len(first)),
        }
    )
    splits = pc.if_else(pc.equal(whole["split"], ""), _NO_SPLIT, whole["split"])
    names = [*_HELD_OUT, *sorted(set(pc.unique(splits).to_pylist()) - set(_HELD_OUT))]
    rank = pc.index_in(splits, value_set=pa.array(names)).to_numpy()
    best = np.full(len(first), len(names))
    np.minimum.at(best, row, rank)
    queries = queries.append_column("split", pa.array(names).take(pa.array(best)))
    of_block = np.split(row, np.cumsum([len(block) for block in blocks])[:-1])
    moved = int((rank != best[row]).sum())
    return Merged(queries, of_block, len(whole) - len(first), moved, whole["where"].take(pa.array(first)))


def first_passages(ids: Iterable[pa.ChunkedArray]) -> list[NDArray[np.bool_]]:
    """For each block whether a passage is the first of its id in all blocks; an id is 32 hexadecimal digits, of which 16 bytes are held."""
    of_block = [_numbers(column) for column in ids]
    number = np.concatenate(of_block)
    order = np.lexsort((number[:, 1], number[:, 0]))
    ordered = number[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.zeros(len(order), np.bool_)
    first[order[new]] = True  # lexsort is stable: the first of a run is the earliest
    return np.split(first, np.cumsum([len(block) for block in of_block])[:-1])


def _numbers(ids: pa.ChunkedArray) -> NDArray[np.uint64]:
    """The ids as two numbers each, uint64 [n, 2]."""
    digits = ids.cast(pa.binary()).combine_chunks().cast(pa.binary(_DIGITS))
    data = np.frombuffer(digits.buffers()[1], np.uint8, _DIGITS * len(digits), _DIGITS * digits.offset)
    return np.frombuffer(bytes.fromhex(data.tobytes().decode()), np.uint64).reshape(-1, 2)


def _first_places(group: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first place of each group, rising, and for each place the number of its group in that order."""
    _, first, of = np.unique(group, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return first[order], number[of]


def _all_answers(answers: pa.ChunkedArray, row: NDArray[np.int64], rows: int) -> pa.Array:
    """The distinct answers of all questions of each row, in their order."""
    flat = pa.table({"row": np.repeat(row, pc.list_value_length(answers).to_numpy()), "answer": pc.list_flatten(answers)})
    flat = flat.take(pa.array(np.argsort(flat["row"].to_numpy(), kind="stable")))
    once = flat.group_by(["row", "answer"], use_threads=False).aggregate([])
    starts = np.searchsorted(once["row"].to_numpy(), np.arange(rows + 1))
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), once["answer"].combine_chunks())


def _refuse_repeated(questions: pa.Table) -> None:
    ids, where = questions["question_id"], questions["where"]
    if repeated := first_repeated(ids):
        at, earlier = repeated
        what = f"question_id {ids[at].as_py()!r} is repeated (first at {where[earlier].as_py()})"
        raise InputError(what, where[at].as_py(), "make ids unique")
