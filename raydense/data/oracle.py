"""Queries for passages from judgements, where `generate` takes a model: what a generator could give at best, as contexts or expansions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.generated import commit_queries
from raydense.data.lookup import IdLookup
from raydense.data.settings import OracleSettings
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import concat_parts, positives_of, query_positions
from raydense.errors import InputError
from raydense.ranges import ranges
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, provenance, releases_outputs


@releases_outputs
def oracle(settings: OracleSettings) -> Artifact:
    """Write for every passage the queries judged relevant for it, or for its document (`doc_id`): `generated`, as of `generate`.

    They come as their texts first appear among the queries; equal texts count once, and a passage that no judgement names has none. Shards
    that an earlier run committed are kept. InputError on a judged query that the queries lack, if no judgement names a passage or a document of the
    corpus, or if the output was made from other inputs.
    """
    made_from = provenance("oracle", settings)
    prints = made_from["inputs"]
    store = PassageStore(settings.corpus, prints["corpus"])
    draft = Draft.open(settings.output, "generated", made_from)
    if draft.done:
        return draft.done
    judged, there = _Judged(settings, prints), draft.committed()
    unmet = judged.unmet(store)
    for part, (start, stop) in enumerate(store.shards):
        name = f"generated-{part:05d}.arrow"
        if name not in there:
            lists = judged.lists(store, start, stop)
            without = int((lists.value_lengths().to_numpy() == 0).sum())
            commit_queries(draft, name, start, lists, queries=len(lists.values), without=without)
    notes = [file.note for file in draft.committed().values()]
    counts = {key: sum(note[key] for note in notes) for key in ("queries", "without")}
    say(f"oracle: {counts['queries']:,} queries for {len(store) - counts['without']:,} passages; {counts['without']:,} have none")
    if unmet:
        say(f"oracle: {unmet:,} of {len(judged):,} judged passages or documents are not in the corpus")
    return draft.finish(len(store), corpus=store.fingerprint, **counts, unmet=unmet)


class _Judged:
    """The judged ids, of passages or documents, each with the texts of its queries."""

    def __init__(self, settings: OracleSettings, prints: dict[str, str]) -> None:
        self._where = settings.qrels
        queries, qrels = (
            concat_parts(Artifact.open(getattr(settings, kind), kind, prints[kind]).parts(".parquet"), kind)
            for kind in ("queries", "qrels")
        )
        qrels = positives_of(qrels)
        texts = queries["text"].combine_chunks().dictionary_encode()
        self._texts = texts.dictionary  # in the order of the queries
        of_query = texts.indices.to_numpy().astype(np.int64)
        ids = qrels["passage_id"].combine_chunks().dictionary_encode()
        place = ids.indices.to_numpy().astype(np.int64)
        order = np.argsort(place, kind="stable")
        self._text = of_query[query_positions(qrels["query_id"], queries, settings.qrels)][order]
        self._starts = np.append(0, np.cumsum(np.bincount(place, minlength=len(ids.dictionary))))
        self._lookup = IdLookup(ids.dictionary)

    def __len__(self) -> int:
        return len(self._lookup)

    def unmet(self, store: PassageStore) -> int:
        """How many judged ids the corpus lacks; InputError if it has none of them."""
        met = np.zeros(len(self), dtype=bool)
        with Progress("oracle", len(store), "passages") as progress:
            for start, stop in store.shards:
                met[self._places(store, start, stop)[1]] = True
                progress.add(stop - start)
        if not met.any():
            fix = "give the qrels of this corpus, or of the documents that it was split from"
            raise InputError("no judgement names a passage or a document of the corpus", self._where, fix)
        return int((~met).sum())

    def lists(self, store: PassageStore, start: int, stop: int) -> pa.ListArray:
        """The texts of the queries of each passage of rows start..stop-1."""
        passage, place = self._places(store, start, stop)
        sizes = self._starts[place + 1] - self._starts[place]
        at = ranges(self._starts[place], sizes)
        pairs = np.unique(np.repeat(passage, sizes) * len(self._texts) + self._text[at])  # by passage, then by query
        owner, text = np.divmod(pairs, len(self._texts))
        offsets = np.append(0, np.cumsum(np.bincount(owner, minlength=stop - start)))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), self._texts.take(pa.array(text)))

    def _places(self, store: PassageStore, start: int, stop: int) -> tuple[Rows, Rows]:
        """Each pair of a passage of rows start..stop-1, counted from 0, and the place of the judged id that is its own or its document's."""
        passages = store.slice(start, stop)
        ids = passages["passage_id"].combine_chunks()
        found = [self._lookup.positions(ids)]
        if "doc_id" in passages.column_names:
            documents = pc.coalesce(passages["doc_id"].combine_chunks(), ids)
            found.append(self._lookup.positions_of_rows(pa.chunked_array([documents])))
        passage = np.concatenate([np.flatnonzero(places >= 0) for places in found])
        return passage, np.concatenate([places[places >= 0] for places in found])
