"""Merges the sorted vocabularies of the parts of a BM25 index into one, with the idf of each word, and numbers the parts' words by it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.tables import one_column, write_arrow
from raydense.retrieval.bm25_counts import Part
from raydense.retrieval.word_rules import RULES
from raydense.storage import Draft

VOCABULARY = "vocabulary.arrow"
_MERGED_AT_ONCE = 4_000_000  # words


def merge_vocabularies(draft: Draft, parts: list[Part], rows: int) -> None:
    """Commit the vocabulary of all parts, sorted, with idf = ln(1 + (rows - df + 0.5) / (df + 0.5)); keep the ids of each part's words."""
    if VOCABULARY not in draft.committed():
        merged = _merged(draft, parts).sort_by("word")
        df, where = np.unique(merged["df"].to_numpy(), return_inverse=True)
        idf = np.array([math.log(1 + (rows - n + 0.5) / (n + 0.5)) for n in df.tolist()], dtype=np.float32)[where]
        table = pa.table({"word": merged["word"], "idf": pa.array(idf, pa.float32())})
        draft.commit(VOCABULARY, lambda path: write_arrow(path, table), table.num_rows, rules=RULES)
    lacking = draft.lacks(part.ids for part in parts)
    missing = [part for part in parts if part.ids in lacking]
    if not missing:
        return
    vocabulary = pa.ipc.open_file(pa.memory_map(str(draft.read(VOCABULARY)))).read_all()["word"].combine_chunks()
    for some in _groups(draft, missing):
        words = [_words(draft, part)["word"] for part in some]
        ids = pc.index_in(one_column(words), value_set=vocabulary)
        ends = np.cumsum([len(column) for column in words])
        for part, mine in zip(some, np.split(ids.to_numpy(), ends[:-1]), strict=True):
            draft.keep(part.ids, mine.astype(np.int32).tofile)


def _merged(draft: Draft, parts: list[Part]) -> pa.Table:
    """Each word of all parts with its number of passages, in any order; as few words in memory as twice the result."""
    merged = pa.table({"word": pa.array([], pa.string()), "df": pa.array([], pa.int64())})
    waiting = [merged]
    for number, part in enumerate(parts, 1):
        table = _words(draft, part)
        waiting.append(table.set_column(1, "df", table["df"].cast(pa.int64())))
        if sum(map(len, waiting)) > len(merged) + max(len(merged), _MERGED_AT_ONCE) or number == len(parts):
            merged = pa.concat_tables(waiting).group_by("word").aggregate([("df", "sum")]).rename_columns(["word", "df"])
            waiting = [merged]
    return merged


def _groups(draft: Draft, parts: list[Part]) -> Iterator[list[Part]]:
    """The parts in groups of about _MERGED_AT_ONCE words, each of which is looked up in the vocabulary at once, as that hashes it."""
    group: list[Part] = []
    words = 0
    for part in parts:
        group.append(part)
        words += len(_words(draft, part))
        if words >= _MERGED_AT_ONCE:
            yield group
            group, words = [], 0
    if group:
        yield group


def _words(draft: Draft, part: Part) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(draft.kept_whole(part.words)))).read_all()
