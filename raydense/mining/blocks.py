"""What all blocks of a run share when it is mined: the corpus, the queries, and the positives that belong to it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.lookup import IdLookup
from raydense.data.runs import not_adjacent, scored_depth
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import SCHEMAS, first_of_text, query_positions, query_starts, read_table, unknown_query
from raydense.mining.negatives import Flags, Positives
from raydense.runtime.progress import say
from raydense.storage import Artifact


def depth_of(run: Artifact, asked: int) -> int:
    """How many first hits of each query are candidates: of a re-ranked run at most the scored ones, others have scores of another kind."""
    return min(asked, scored_depth(run) or asked)


def say_depth(verb: str, run: str, depth: int, asked: int) -> None:
    """Say that fewer hits are candidates than was asked for, if so."""
    if depth < asked:
        say(f"{verb}: {run} has scores of the re-ranker down to rank {depth}: it is the depth, not {asked}")


class Judged:
    """What all blocks of a run share: the corpus, the queries, the positives, and which queries the run has.

    InputError if the run is of another corpus, or the judgements are of other queries.
    """

    def __init__(self, run: str, corpus: str, queries: str, qrels: str | None) -> None:
        self.run, self._qrels = run, qrels
        self.store = PassageStore(corpus)
        self.store.refuse_rows_of_another(Artifact.open(run, "run"))
        known = read_table(queries, "queries", ["query_id", "text"])
        judgements = read_table(qrels, "qrels") if qrels else SCHEMAS["qrels"].empty_table()
        judged = query_positions(judgements["query_id"], known, qrels)
        self.positives, self._judgements = Positives.of(judgements, self.store, qrels), len(judgements)
        first = known["query_id"].take(pa.array(first_of_text(known["text"])))
        of_questions = judgements.set_column(judgements.schema.get_field_index("query_id"), "query_id", first.take(pa.array(judged)))
        self._known = Positives.of(of_questions, self.store, qrels)
        self._question = IdLookup(self._known.query_ids).positions(first)
        self._queries, self._judged = IdLookup(known["query_id"]), IdLookup(self.positives.query_ids)
        self.met = np.zeros(len(known), dtype=bool)
        self.judged_met = np.zeros(len(self.positives), dtype=bool)

    def say_lacking(self, verb: str) -> None:
        """As `PassageStore.say_lacking`."""
        self.store.say_lacking(verb, self.positives.lacking, self._judgements, self._qrels)

    def queries_of(self, block: pa.Table) -> tuple[pa.Array, Rows, Rows]:
        """The id of each query of a block, how many rows it has, and its number among the judged queries, or -1.

        InputError on an unknown query, and on one whose rows are not adjacent.
        """
        starts = query_starts(block["query_id"])
        ids = block["query_id"].take(pa.array(starts[:-1])).combine_chunks()
        known = self._queries.positions(ids)
        if (known < 0).any():
            raise unknown_query(ids[int(np.argmax(known < 0))].as_py(), self.run)
        again = self.met[known]
        again[np.setdiff1d(np.arange(len(known)), np.unique(known, return_index=True)[1])] = True
        if again.any():
            raise not_adjacent(ids[int(np.argmax(again))].as_py(), self.run)
        self.met[known] = True
        numbers = self._judged.positions(ids)
        self.judged_met[numbers[numbers >= 0]] = True
        return ids, np.diff(starts), numbers

    def like_positive(self, ids: pa.Array, query: Rows, text_hash: NDArray[np.uint64]) -> Flags:
        """Whether each passage has the text of a positive of its question: of any query with the text of `ids[query]`."""
        return self._known.hold_text(self._question[self._queries.positions(ids)][query], text_hash)

    @property
    def unmet(self) -> Flags:
        """For each judged query whether it has a positive and the run, which was read to its end, does not have it; bool [queries]."""
        return (self.positives.counts > 0) & ~self.judged_met
