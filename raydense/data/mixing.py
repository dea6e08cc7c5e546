"""Mix: the queries and examples of several sources become one data set, on which a training draws from all of them.

A query `7` of the source `nq` becomes `nq:7`. With one corpus for all, passages stay as they are. Of several, the passages that examples,
judgements and runs name are copied into one, with such ids too: it is what a training reads of them, but nothing to search in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.dataset import DatasetDraft
from raydense.data.lookup import IdLookup
from raydense.data.runs import BLOCK_ROWS, query_blocks, write_blocks
from raydense.data.settings import MixSettings, shared_folder
from raydense.data.store import CorpusWriter, PassageStore, Rows
from raydense.data.tables import query_positions, read_table, refuse_rows_outside
from raydense.errors import InputError
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft, named_folders, provenance, releases_outputs

_BLOCK, _FILE_ROWS = 8_192, 25_000
_DEPTH = 100  # hits of a query in a run: more than a dev metric looks at
_LISTS = ("positives", "negatives")
_SCORES = ("positive_scores", "negative_scores")


@dataclass(frozen=True)
class _Source:
    """What one source brings: its tables, checked against each other, the folder of its run, and the number of its corpus."""

    name: str
    queries: pa.Table
    examples: pa.Table
    qrels: pa.Table | None
    run: str | None
    corpus: int


@releases_outputs
def mix(settings: MixSettings) -> Artifact:
    """Make one data set of several: an artifact of kind `dataset` with `queries` (whose column `source` names where each is from),
    `examples`, `qrels` and `run` if some are given, and `corpus` if the settings name several. A run has the first hits of the judged queries.

    InputError where a name has no counterpart, a query or a passage is unknown, or examples were made with another corpus.
    """
    dataset = DatasetDraft(settings.output, provenance("mix", settings))
    if dataset.done:
        return dataset.done
    stores, sources = _read(settings)
    kept = [_rows_named(store, [one for one in sources if one.corpus == number]) for number, store in enumerate(stores)]
    names = [next(one.name for one in sources if one.corpus == number) for number in range(len(stores))]
    joined = None
    if len(settings.corpus) > 1:
        joined = dataset.keep("corpus", _write_corpus(dataset.part("corpus", "corpus"), names, stores, kept))
    weights = settings.weights or [1.0] * len(sources)
    of_source = {one.name: weight for one, weight in zip(sources, weights, strict=True)}
    prefixes = settings.prefixes or [""] * len(sources)
    for one, prefix in zip(sources, prefixes, strict=True):
        begun = f", each query begins with {prefix!r}" if prefix else ""
        say(f"mix: {one.name}: {len(one.queries):,} queries, {len(one.examples):,} examples, weight {of_source[one.name]:g}{begun}")
    texts = pa.concat_tables([_queries_of(one, prefix) for one, prefix in zip(sources, prefixes, strict=True)], promote_options="default")
    dataset.table("queries", "queries", texts, weights=of_source)
    first = np.append(0, np.cumsum([len(rows) for rows in kept]))[:-1] if joined else None
    examples = pa.concat_tables([_examples_of(one, kept[one.corpus], None if first is None else int(first[one.corpus])) for one in sources])
    if all(examples[key].null_count == len(examples) for key in _SCORES):
        examples = examples.drop_columns(list(_SCORES))
    drawn = sum(round(of_source[one.name] * len(one.examples)) for one in sources)
    dataset.table("examples", "examples", examples, corpus=(joined or stores[0].artifact).fingerprint, drawn=drawn)
    of_corpus = {one.name: names[one.corpus] if joined else None for one in sources}
    judged = [_renamed(one.name, of_corpus[one.name], one.qrels) for one in sources if one.qrels is not None]
    if judged:
        dataset.table("qrels", "qrels", pa.concat_tables(judged))
    if any(one.run for one in sources):
        hits = (_renamed(one.name, of_corpus[one.name], block) for one in sources for block in _hits(one))
        _write_run(dataset, hits, joined or stores[0].artifact)
    return dataset.finish()


def _read(settings: MixSettings) -> tuple[list[PassageStore], list[_Source]]:
    """The different corpora, and the sources."""
    stores: list[PassageStore] = []
    sources = []
    qrels, runs = dict(named_folders(settings.qrels)), dict(named_folders(settings.run))
    for name, folder in named_folders(settings.examples):
        store = PassageStore(_of(settings.corpus, name))
        number = next((n for n, other in enumerate(stores) if other.fingerprint == store.fingerprint), len(stores))
        stores += [store] if number == len(stores) else []
        queries, examples = read_table(_of(settings.queries, name), "queries"), _examples(folder, store)
        query_positions(examples["query_id"], queries, folder)
        judged = read_table(qrels[name], "qrels") if name in qrels else None
        if judged is not None:
            query_positions(judged["query_id"], queries, qrels[name])
            known = store.known_judgements(judged, qrels[name])
            if len(settings.corpus) > 1:  # only the joined corpus has other ids
                store.say_lacking("mix", len(judged) - len(known), len(judged), qrels[name])
                judged = known
        if name in runs:
            store.refuse_rows_of_another(Artifact.open(runs[name], "run"))
        sources.append(_Source(name, queries, examples, judged, runs.get(name), number))
    return stores, sources


def _examples(folder: str, store: PassageStore) -> pa.Table:
    """The examples, with empty lists for null; InputError if they are of another corpus, or name rows that it does not have."""
    table = read_table(folder, "examples")
    store.refuse_rows_of_another(Artifact.open(folder, "examples"))
    for key in _LISTS:
        ends = np.append(0, np.cumsum(pc.fill_null(pc.list_value_length(table[key]), 0).to_numpy()))
        rows = _flat(table[key])
        refuse_rows_outside(table, key, rows, ends, len(store), folder)
        table = table.set_column(table.column_names.index(key), key, pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(rows)))
    return table


def _hits(source: _Source) -> Iterator[pa.Table]:
    """The first `_DEPTH` hits of the judged queries in the run of a source, if it has one, in blocks."""
    if source.run is None or source.qrels is None:
        return
    lookup = IdLookup(pc.unique(source.qrels["query_id"]))
    for block in query_blocks(Artifact.open(source.run, "run").parts(".parquet"), BLOCK_ROWS):
        block = block.filter(pc.less_equal(block["rank"], _DEPTH))
        block = block.filter(pa.array(lookup.positions_of_rows(block["query_id"]) >= 0))
        if len(block):
            yield block


def _of(folders: list[str], name: str) -> str:
    """The folder of a source, or the one for all."""
    return shared_folder(folders) or dict(named_folders(folders))[name]


def _rows_named(store: PassageStore, sources: list[_Source]) -> Rows:
    """The rows of a corpus that the examples, judgements and runs of its sources name, rising.

    InputError for a passage that it does not have, and for a run without a judged query.
    """
    named = np.zeros(len(store), bool)
    for one in sources:
        for key in _LISTS:
            named[_flat(one.examples[key])] = True
        if one.qrels is not None:
            rows = store.rows_of(one.qrels["passage_id"])
            named[rows[rows >= 0]] = True
        found = 0
        for hits in _hits(one):
            named[store.known_rows(hits["passage_id"], one.run)] = True
            found += len(hits)
        if one.run and not found:
            raise InputError("has no query of those that are judged", one.run, "give the run of the queries of qrels")
    return np.flatnonzero(named)


def _flat(lists: pa.ChunkedArray) -> Rows:
    return pc.list_flatten(lists).to_numpy()


def _write_corpus(draft: Draft, names: list[str], stores: list[PassageStore], kept: list[Rows]) -> Artifact:
    """The named passages of all corpora, one corpus after another."""
    if draft.done:
        return draft.done
    writer = CorpusWriter(draft, _FILE_ROWS, strict=False)
    with Progress("mix corpus", sum(map(len, kept)), "passages") as progress:
        for name, store, rows in zip(names, stores, kept, strict=True):
            for at in range(0, len(rows), _BLOCK):
                table = store.take(rows[at : at + _BLOCK], ["passage_id", "title", "text"])
                writer.add(table.set_column(0, "passage_id", _prefixed(name, table["passage_id"])))
                progress.add(table.num_rows)
    return writer.finish()


def _queries_of(source: _Source, prefix: str) -> pa.Table:
    """The queries of a source, with its prefix and its name."""
    table = source.queries.set_column(0, "query_id", _prefixed(source.name, source.queries["query_id"]))
    text = pc.binary_join_element_wise(pa.scalar(prefix), table["text"], "")
    table = table.set_column(table.column_names.index("text"), "text", text)
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int32)), [source.name]).cast(pa.string())
    if "source" in table.column_names:
        table = table.drop_columns(["source"])
    return table.append_column("source", names)


def _examples_of(source: _Source, kept: Rows, first: int | None) -> pa.Table:
    """The examples of a source; `first` is the row of its corpus's first passage in the joined corpus, whose passages are the `kept` ones."""
    table: dict[str, Any] = {"query_id": _prefixed(source.name, source.examples["query_id"])}
    for key in _LISTS:
        lists = source.examples[key].combine_chunks()
        if first is not None:
            lists = pa.ListArray.from_arrays(lists.offsets, pa.array(np.searchsorted(kept, _flat(source.examples[key])) + first))
        table[key] = lists
    for key in _SCORES:
        there = key in source.examples.column_names
        table[key] = source.examples[key] if there else pa.nulls(len(source.examples), pa.list_(pa.float32()))
    return pa.table(table)


def _write_run(dataset: DatasetDraft, hits: Iterator[pa.Table], corpus: Artifact) -> None:
    draft = dataset.part("run", "run")
    made = draft.done
    if made is None:
        aside = draft.work / "run.parquet"
        rows = write_blocks(aside, "mix run", hits)
        draft.commit("run.parquet", aside.replace, rows)
        made = draft.finish(rows, corpus=corpus.fingerprint)
    dataset.keep("run", made)


def _renamed(source: str, corpus: str | None, table: pa.Table) -> pa.Table:
    """The judgements or hits of a source; `corpus` is the name that its passages have in the joined corpus."""
    table = table.set_column(0, "query_id", _prefixed(source, table["query_id"]))
    return table.set_column(1, "passage_id", _prefixed(corpus, table["passage_id"])) if corpus else table


def _prefixed(name: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(pa.scalar(name), ids, ":")
