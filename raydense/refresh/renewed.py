"""The examples after a refresh: as before, but some queries have new negatives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.mining.negatives import Flags, among, first_of_each
from raydense.training.ragged import Ragged

_LISTS = ("negatives", "negative_scores", "negative_sources")


def renewed(old: pa.Table, new: pa.Table, stands: Flags, text_hash: NDArray[np.uint64], least: int, most: int) -> tuple[pa.Table, Flags]:
    """The examples `old`, where those of queries in `new` have its negatives; and whether each example changed, bool [examples].

    The old negatives marked in `stands`, bool [negatives of `old`], come first, and no new one has the text (`text_hash`, by row) of
    one of them. An example gets the first `most` of both together; if they are fewer than `least` it keeps its old negatives.
    """
    old, new = old.combine_chunks(), new.combine_chunks()
    was, now = Ragged.of_column(old["negatives"]), Ragged.of_column(new["negatives"])
    kept = np.flatnonzero(stands)
    place = pc.fill_null(pc.index_in(old["query_id"].combine_chunks(), value_set=new["query_id"].combine_chunks()), -1).to_numpy()
    found = np.flatnonzero(place >= 0)
    drawn = Ragged(np.arange(len(now.values)), now.offsets).take(place[found])
    of_drawn = found[drawn.owner]
    again = among(of_drawn, text_hash[now.values[drawn.values]], was.owner[kept], text_hash[was.values[kept]])
    # the number of each negative (old ones, then new ones), and its example
    number = np.concatenate([kept, len(was.values) + drawn.values[~again]])
    owner = np.concatenate([was.owner[kept], of_drawn[~again]])
    first = first_of_each(owner, np.arange(len(owner)), most)
    number, owner = number[first], owner[first]
    changed = (place >= 0) & (np.bincount(owner, minlength=len(old)) >= least)
    untouched = np.flatnonzero(~changed[was.owner])
    number = np.concatenate([number[changed[owner]], untouched])
    owner = np.concatenate([owner[changed[owner]], was.owner[untouched]])
    order = np.argsort(owner, kind="stable")
    offsets = pa.array(np.append(0, np.cumsum(np.bincount(owner, minlength=len(old)))), pa.int32())
    table = old
    for name in (name for name in _LISTS if name in old.column_names):
        both = pa.concat_arrays([_of_each_negative(one, name) for one in (old, new)])
        lists = pa.ListArray.from_arrays(offsets, both.take(pa.array(number[order])))
        table = table.set_column(table.column_names.index(name), name, lists)
    return table, changed


def _of_each_negative(examples: pa.Table, name: str) -> pa.Array:
    """The values of a column of lists, one for each negative; null where the list is null, as that of an entry without scores."""
    negatives, lists = Ragged.of_column(examples["negatives"]), examples[name].combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    if not lists.null_count:
        return lists.flatten()
    within = np.arange(len(negatives.values)) - negatives.offsets[negatives.owner]
    at = lists.offsets.to_numpy().astype(np.int64)[negatives.owner] + within
    missing = lists.is_null().to_numpy(zero_copy_only=False)[negatives.owner]
    return lists.values.take(pa.array(at, mask=missing))


def share_new(before: pa.Table, after: pa.Table, changed: Flags) -> float:
    """The share of the changed examples' negatives that these examples did not have before."""
    lists = [Ragged.of_column(table["negatives"]).take(np.flatnonzero(changed)) for table in (before, after)]
    rows = max(int(one.values.max(initial=0)) for one in lists) + 1
    old, new = (one.owner * rows + one.values for one in lists)
    return round(float(np.isin(new, old, invert=True).mean()), 4) if len(new) else 0.0
