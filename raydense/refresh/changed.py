"""For a partial refresh: finds the passages of a run whose rank differs from that in the run before it.

Both runs have the same queries in the same files, as two searches of one refreshed training do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydense.data.lookup import IdLookup
from raydense.data.store import PassageStore
from raydense.data.tables import commit_table
from raydense.mining.negatives import Flags, among
from raydense.storage import Artifact, Draft, Place
from raydense.training.ragged import Ragged


def changed(found: Artifact, before: Artifact, output: Place) -> Artifact:
    """A run of the rows of `found` whose passage has another rank, or none, in the run `before`; ranks are unchanged."""
    draft = Draft.open(output, "run", {"stage": "refresh", "inputs": {"run": found.fingerprint, "before": before.fingerprint}})
    if draft.done:
        return draft.done
    done = draft.committed()
    for name, run, same in _compared(found, before):
        if name not in done:
            commit_table(draft, name, run.filter(pa.array(~same)))
    return draft.finish(sum(file.rows for file in draft.committed().values()), **found.summary)


def standing(examples: pa.Table, found: Artifact, before: Artifact, store: PassageStore) -> Flags:
    """Whether each negative of `examples`, list after list, has the same rank in both runs; bool [negatives]."""
    negatives, ids = Ragged.of_column(examples["negatives"]), examples["query_id"].combine_chunks().dictionary_encode()
    query_of = ids.indices.to_numpy().astype(np.int64)[negatives.owner]
    queries = IdLookup(ids.dictionary)
    of_query = Ragged(np.argsort(query_of, kind="stable"), np.append(0, np.cumsum(np.bincount(query_of, minlength=len(queries)))))
    stands = np.zeros(len(query_of), dtype=bool)
    for _, run, same in _compared(found, before):
        kept = run.filter(pa.array(same))
        query = queries.positions_of_rows(kept["query_id"])
        here = of_query.take(np.unique(query[query >= 0])).values
        stands[here] = among(query_of[here], negatives.values[here], query, store.known_rows(kept["passage_id"], found.place))
    return stands


def _compared(found: Artifact, before: Artifact) -> Iterator[tuple[str, pa.Table, Flags]]:
    """Each file of `found` with its name, its rows, and whether each row has the same query, passage and rank in `before`."""
    for part, other in zip(found.parts(".parquet"), before.parts(".parquet"), strict=True):
        run = pq.read_table(part)
        both = pa.concat_tables([run, pq.read_table(other)]).select(["query_id", "passage_id", "rank"])
        query, passage = (
            both[name].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64) for name in both.column_names[:2]
        )
        rank = both["rank"].to_numpy()
        place, n = query * (int(rank.max(initial=0)) + 1) + rank, len(run)
        yield part.name, run, among(place[:n], passage[:n], place[n:], passage[n:])
