"""Training examples as arrays: read, checked against their queries and corpus, and filtered to those with a teacher's scores."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.data.store import PassageStore
from raydense.data.tables import concat_parts, first_of_text, positives_of, query_positions, read_table, refuse_rows_outside
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.storage import Artifact, read_manifest
from raydense.training.ragged import Ints, Ragged
from raydense.training.settings import TrainSettings
from raydense.training.texts import Texts


@dataclass(frozen=True)
class Examples:
    """Training examples, as arrays: the query's position [n], its positives and its hard negatives.

    `judged` are all judged positives, if some of them are never drawn as positives. Of mixed queries, `source` [n] is the number of
    the source of each, and `weights` has that of each source, by its name. `topic` [n], of batches of one topic, is the number of that of each.
    """

    query: Ints
    positives: Ragged
    negatives: Ragged
    judged: Ragged | None = None
    source: Ints | None = None
    weights: dict[str, float] = field(default_factory=dict)
    topic: Ints | None = None

    def __len__(self) -> int:
        return len(self.query)

    @cached_property
    def known(self) -> Ragged:
        """All positives of each example's query, including those of other examples of the same query."""
        queries, number = np.unique(self.query, return_inverse=True)
        positives = self.positives if self.judged is None else self.judged
        if len(queries) == len(self):
            return positives
        of_query = number[positives.owner]
        offsets = np.append(0, np.cumsum(np.bincount(of_query, minlength=len(queries))))
        return Ragged(positives.values[np.argsort(of_query, kind="stable")], offsets).take(number)

    def and_then(self, other: Examples) -> Examples:
        """These examples followed by `other`."""
        query = np.concatenate([self.query, other.query])
        return Examples(query, self.positives.and_then(other.positives), self.negatives.and_then(other.negatives))

    def scored(self, negatives: int) -> Examples:
        """The examples with a scored positive and at least `negatives` scored negatives; only scored passages are kept."""
        positives, given = self.positives.scored(), self.negatives.scored()
        kept = np.flatnonzero((positives.lengths > 0) & (given.lengths >= negatives))
        source, topic = (None if of is None else of[kept] for of in (self.source, self.topic))
        return Examples(self.query[kept], positives.take(kept), given.take(kept), self.positives.take(kept), source, self.weights, topic)


_SCORES = ("positive_scores", "negative_scores")
_SCORED = "give examples of `raydense label`, of `raydense mine --keep-scores` of a run of `rerank`, or imported ones with scores"
_COLUMNS = ("query_id", "positives", "negatives", *_SCORES)


def read_training_data(
    settings: TrainSettings, store: PassageStore, negatives: int, needs_scores: bool, log: bool = False
) -> tuple[Examples, Texts]:
    """All examples of the settings, and their texts; with `log`, logs how many are left out.

    InputError if a method needs scores and the examples have none.
    """
    if needs_scores:
        require_scores(settings)
    queries = read_table(settings.queries, "queries")
    examples = read_examples(settings.examples, queries, store, negatives)
    if settings.more_examples:
        examples = examples.and_then(read_examples(settings.more_examples, queries, store, negatives))
    examples = _of_topics(_of_sources(examples, queries, settings), settings)
    examples = replace(examples, query=first_of_text(queries["text"])[examples.query])
    if needs_scores:
        examples = _scored(examples, negatives, settings, log)
    return examples, Texts(queries, store)


def _of_sources(examples: Examples, queries: pa.Table, settings: TrainSettings) -> Examples:
    """The examples with the sources of their queries, if the queries are those of `mix`."""
    weights: dict[str, float] = Artifact.open(settings.queries).summary.get("weights", {})
    if not weights:
        if settings.one_source:
            raise InputError("has no sources to make batches of one", settings.queries, "give queries of `raydense mix`")
        return examples
    number = pc.index_in(queries["source"], value_set=pa.array(list(weights))).to_numpy().astype(np.int64)
    return replace(examples, source=number[examples.query], weights=weights)


def _of_topics(examples: Examples, settings: TrainSettings) -> Examples:
    """The examples with the topics of their queries, if the settings have topics; InputError if these are of other queries."""
    folder = getattr(settings, "topics", None)
    if folder is None:
        return examples
    made_of, queries = Artifact.open(folder, "topics").summary["queries"], Artifact.open(settings.queries).fingerprint
    if made_of != queries:
        raise InputError(f"has the topics of other queries than {settings.queries}", folder, "make the topics of these")
    topic = read_table(folder, "topics", ["topic"])["topic"].to_numpy()
    return replace(examples, topic=topic[examples.query].astype(np.int64))


def require_scores(settings: TrainSettings) -> None:
    """InputError where examples that the settings name are there, and have no teacher's scores; reads the columns' names of their first file."""
    for path in (settings.examples, settings.more_examples):
        if path and read_manifest(path) is not None:
            examples = Artifact.open(path)
            first = next((file.path for file in examples.files if file.path.endswith(".parquet")), None)
            if first and not {*_SCORES} <= {*pq.read_schema(examples.file(first)).names}:
                raise InputError(f"has no teacher's scores, which objective {settings.objective} learns from", path, _SCORED)


def _scored(examples: Examples, negatives: int, settings: TrainSettings, log: bool) -> Examples:
    scored = examples.scored(negatives)
    if not len(scored):
        raise InputError(f"no query has a positive and {negatives} negatives with a teacher's score", settings.examples, _SCORED)
    if log and len(scored) < len(examples):
        left = len(examples) - len(scored)
        say(f"train: {left:,} of {len(examples):,} queries have too few passages with a teacher's score, and are left out")
    return scored


def read_examples(path: str | os.PathLike[str], queries: pa.Table, store: PassageStore, negatives: int) -> Examples:
    """The examples artifact, or qrels as examples without negatives, checked against its queries and corpus.

    InputError on anything that would make the training fail later.
    """
    artifact = Artifact.open(path)
    if artifact.kind == "qrels":
        table = _of_qrels(path, store)
    else:
        store.refuse_rows_of_another(Artifact.open(path, "examples"))
        parts = artifact.parts(".parquet")
        columns = [name for name in _COLUMNS if not parts or name in pq.read_schema(parts[0]).names]
        table = concat_parts(parts, "examples", columns)
    if not table.num_rows:
        raise InputError("no examples", path, "mine or import some")
    if artifact.kind == "qrels" and negatives:
        raise InputError("qrels hold no hard negatives", path, f"mine examples from a run, or give --negatives 0 (now {negatives})")
    examples = Examples(query_positions(table["query_id"], queries, path), *_lists(table, path))
    _refuse_short(table, "positives", 1, path, "no positive", "remove them, or give qrels with relevance of at least 1")
    if negatives:
        stage = artifact.manifest["made_from"].get("stage")
        again = (
            f"{stage} again with --min-negatives {negatives} --shortage drop"
            if stage in ("mine", "label")
            else "leave these queries out of what it was made from"
        )
        fix = f"lower --negatives (now {negatives}), or {again}"
        _refuse_short(table, "negatives", negatives, path, f"fewer than {negatives} negatives", fix)
    for name, lists in (("positives", examples.positives), ("negatives", examples.negatives)):
        refuse_rows_outside(table, name, lists.values, lists.offsets, len(store), path)
    return examples


def _lists(table: pa.Table, path: object) -> tuple[Ragged, Ragged]:
    """The positives and the negatives, with scores if both have some."""
    lists = [Ragged.of_column(table[f"{name}s"]) for name in ("positive", "negative")]
    if all(name in table.column_names for name in _SCORES):
        for i, name in enumerate(_SCORES):
            try:
                lists[i] = lists[i].with_scores(table[name])
            except ValueError as error:
                query = table["query_id"][error.args[0]].as_py()
                raise InputError(f"query {query!r} has not as many {name} as passages", path, "give a score for each, or none") from None
    return lists[0], lists[1]


def _of_qrels(path: str | os.PathLike[str], store: PassageStore) -> pa.Table:
    """The judged queries in the order of their first judgement, each with the rows of its positives."""
    qrels = positives_of(read_table(path, "qrels"))
    rows = pa.array(store.known_rows(qrels["passage_id"], path)) if qrels.num_rows else pa.array([], pa.int64())
    table = pa.table({"query_id": qrels["query_id"].combine_chunks(), "row": rows})
    grouped = table.group_by("query_id", use_threads=False).aggregate([("row", "list")]).rename_columns(["query_id", "positives"])
    none = pa.array([[]] * grouped.num_rows, pa.list_(pa.int64()))
    return grouped.append_column("negatives", none)


def _refuse_short(table: pa.Table, name: str, least: int, path: object, what: str, fix: str) -> None:
    short = pc.less(pc.fill_null(pc.list_value_length(table[name]), 0), least)
    count = pc.sum(short).as_py() or 0
    if count:
        first = table["query_id"].filter(short)[0].as_py()
        raise InputError(f"{count:,} of {table.num_rows:,} queries have {what}, the first is {first!r}", path, fix)
