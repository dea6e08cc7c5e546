"""Takes the tables of a format's reader, checks that ids exist, and writes the parts of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydense.data.dataset import DatasetDraft, refuse_part_name
from raydense.data.formats.distinct import distinct
from raydense.data.formats.lines import Where, placed, refuse_blank
from raydense.data.formats.ranking import Tables, write_run
from raydense.data.generated import commit_queries
from raydense.data.hidden_labels import hide_labels
from raydense.data.lookup import IdLookup
from raydense.data.missing_splits import fill_splits, without_drawn
from raydense.data.settings import HardNegatives, ImportSettings
from raydense.data.store import CorpusWriter, PassageStore, Rows
from raydense.data.tables import first_repeated, one_column
from raydense.errors import InputError
from raydense.runtime.progress import Progress, say
from raydense.storage import Artifact, Draft

Passages = tuple[Iterable[pa.Table], Where]
_FIX = "correct it, or give the data set that it was made for"


def write_corpus(draft: Draft, passages: Passages, shard_rows: int, strict: bool = True, titles: bool = True) -> Artifact:
    """Write a stream of tables of passages, each with a function from a row to its file and line; `strict` and `titles` as in `CorpusWriter`."""
    if draft.done:
        return draft.done
    tables, at = passages
    writer = CorpusWriter(draft, shard_rows, at, strict, titles)
    with Progress("import corpus", 0, "passages") as progress:
        for table in tables:
            writer.add(table)
            progress.add(table.num_rows)
    if writer.blank:
        say(f"import corpus: kept {writer.blank:,} passages without text")
    return writer.finish()


def run_part(name: str, runs: list[Path]) -> str:
    """The part that a run becomes: `run`, or `run/<name>` where the input has several."""
    return "run" if len(runs) == 1 else f"run/{name}"


class Intake:
    """The data set that an import writes. Give the corpus first, then the queries, then what refers to them.

    `store` is the corpus: the imported one, or that of the settings; without a corpus, passage ids are not checked.
    With `strict` off, passages without text are kept, and so are judgements of passages that the corpus does not have. With
    `titles` off, the corpus has texts alone.
    With `fill_splits` or `hidden` the judgements and examples are held until `finish`, which draws the splits that are missing, and
    hides some; examples of queries that were drawn or hidden are left out.
    `hard_negatives` is for formats whose files have more negatives than a training wants.
    """

    def __init__(self, dataset: DatasetDraft, settings: ImportSettings) -> None:
        self.dataset, self.shard_rows, self.strict, self.titles = dataset, settings.shard_rows, settings.strict, settings.titles
        self.hard_negatives = settings.hard_negatives or HardNegatives()
        self.store = PassageStore(settings.corpus) if settings.corpus else None
        self.query_ids: IdLookup | None = None
        self.parts = 0
        self._fill, self._hidden = settings.fill_by if settings.fill_splits else None, settings.hidden
        self._held: dict[str, pa.Table] | None = {} if settings.fill_splits or settings.hidden else None
        self._examples: list[tuple[str, pa.Table]] = []
        self._queries: pa.Table | None = None

    def refuse_corpus(self, path: Path) -> None:
        """InputError where the settings name a corpus: `path` has texts, and ids of that one are not in it."""
        if self.store is not None:
            raise InputError("makes a corpus of its own texts", path, "leave --corpus out")

    def expect(self, *parts: tuple[str, Path]) -> None:
        """Check the names of parts that files will become, before the corpus is written, which takes minutes.

        InputError as `refuse_part_name`, and for two files of one part.
        """
        files: dict[str, Path] = {}
        for name, path in parts:
            refuse_part_name(name, partial(str, path))
            if (other := files.setdefault(name, path)) != path:
                raise InputError(f"two files of the input would both be {name}, this and {other}", path, "rename or remove one")

    def corpus(self, passages: Passages) -> None:
        """Write the corpus; from here on ids are looked up in it."""
        artifact = write_corpus(self.dataset.part("corpus", "corpus"), passages, self.shard_rows, self.strict, self.titles)
        self.store = PassageStore(self.dataset.keep("corpus", artifact))
        self.parts += 1

    def queries(self, table: pa.Table, at: Where) -> None:
        """Write the queries; InputError on an empty id or text, and on a repeated id."""
        refuse_blank(table, ["query_id", "text"], at)
        ids = table["query_id"]
        if repeated := first_repeated(ids):
            row, earlier = repeated
            raise InputError(f"query_id {ids[row].as_py()!r} is repeated (first at {at(earlier)})", at(row), "make ids unique")
        self.query_ids = IdLookup(ids)
        self._queries = table if self._held is not None else None
        self._table("queries", "queries", table)

    def qrels(self, split: str, table: pa.Table, at: Where) -> None:
        """Write the qrels of a split; InputError on an unknown id, a pair that is judged twice with different grades, and a split that is no name."""
        refuse_part_name(f"qrels/{split}", partial(at, 0))
        if unknown := np.count_nonzero(self.check_ids(table, at, self.strict) < 0):
            say(
                f"import qrels/{split}: judgements of passages that the corpus does not have: {unknown:,} kept, though no run can find these"
            )
        pairs = table.group_by(["query_id", "passage_id"], use_threads=False).aggregate([("relevance", "min"), ("relevance", "max")])
        torn = pc.index(pc.not_equal(pairs["relevance_min"], pairs["relevance_max"]), pa.scalar(True)).as_py()
        if torn >= 0:
            query, passage = pairs["query_id"][torn].as_py(), pairs["passage_id"][torn].as_py()
            both = pc.and_(pc.equal(table["query_id"], query), pc.equal(table["passage_id"], passage)).to_numpy()
            raise InputError(
                f"judges query {query!r} and passage {passage!r} twice, differently", at(int(np.flatnonzero(both)[1])), "keep one of them"
            )
        distinct = without_repeats(table, ["query_id", "passage_id"])
        if self._held is None:
            self._table(f"qrels/{split}", "qrels", distinct)
        elif split in self._held:
            raise InputError(f"two files of the input would both be qrels/{split}", at(0), "rename or remove one")
        else:
            self._held[split] = distinct
            self.parts += 1

    def finish(self) -> Artifact:
        """Finish the data set, with the splits of judgements that were held and those drawn from them, and the examples that were held."""
        if self._held is not None:
            splits = fill_splits(self._held, self._queries, self._fill) if self._fill else self._held
            splits = hide_labels(splits, self._queries, self._hidden) if self._hidden else splits
            for split, table in splits.items():
                if split not in self._held:
                    say(f"import qrels/{split}: {pc.count_distinct(table['query_id']).as_py():,} queries, drawn from another split")
                self._table(f"qrels/{split}", "qrels", table)
            drawn = {split: table for split, table in splits.items() if split not in self._held}
            for split, table in self._examples:
                kept = without_drawn(split, table, drawn, self._queries)
                if left := len(table) - len(kept):
                    say(f"import examples/{split}: left out {left:,} of {len(table):,} examples, whose queries came to another split")
                self._write_examples(split, kept)
        return self.dataset.finish()

    def run(self, name: str, tables: Tables, at: Where) -> None:
        """Write a run: each query's passages in order. `tables()` reads its lines in blocks, and reads them again when called again.

        Each table has `query_id`, `passage_id`, and optionally `rank` and `score`.
        """
        refuse_part_name(name, partial(at, 0))
        draft = self.dataset.part(name, "run")
        made = draft.done
        if made is None:
            aside = draft.work / "run.parquet"
            rows = write_run(aside, name, lambda: self._checked(tables(), at), at)
            draft.commit("run.parquet", aside.replace, rows)
            made = draft.finish(rows)
        self.dataset.keep(name, made)
        self.parts += 1

    def _checked(self, tables: Iterable[pa.Table], at: Where) -> Iterator[pa.Table]:
        """The tables of a run, whose ids are checked as they are read."""
        for table, here in placed(tables, at):
            self.check_ids(table, here)
            yield table

    def examples(self, split: str, table: pa.Table, at: Where) -> None:
        """Write training examples, with each passage once in an example.

        `table` has `query_id` and lists `positives`, `negatives`, of ids or of rows, and optionally scores and sources of each.
        """
        refuse_part_name(f"examples/{split}", partial(at, 0))
        store = self.needed_store(at)
        self._check_queries(table["query_id"], at)
        for name in ("positives", "negatives"):
            table = table.set_column(table.column_names.index(name), name, self.rows(table[name].combine_chunks(), at))
        table, left = distinct(given := table, len(store))
        if left:
            say(f"import examples/{split}: left out {left:,} passages that an example has already, or as a positive")
            table = _without_emptied(given, table, split)
        if self._held is None:
            self._write_examples(split, table)
        else:
            self._examples.append((split, table))
            self.parts += 1

    def _write_examples(self, split: str, table: pa.Table) -> None:
        assert self.store is not None
        self._table(f"examples/{split}", "examples", table, corpus=self.store.fingerprint)

    def needed_store(self, at: Where) -> PassageStore:
        """The corpus; InputError where there is none to look passages up in."""
        if self.store is None:
            raise InputError("has no corpus to look its passages up in", at(0), "add the corpus file, or give --corpus")
        return self.store

    def rows(self, ids: pa.ListArray, at: Where) -> pa.ListArray:
        """Lists of rows of the corpus for lists of passage ids (lists of rows stay); InputError on an id that it does not have."""
        assert self.store is not None
        if pa.types.is_integer(ids.type.value_type):
            return ids
        flat = ids.flatten()
        rows = self.store.rows_of(flat)
        if (unknown := np.flatnonzero(rows < 0)).size:
            line = int(pc.list_parent_indices(ids)[int(unknown[0])].as_py())
            raise InputError(f"names passage {flat[int(unknown[0])].as_py()!r}, which the corpus does not have", at(line), _FIX)
        return pa.ListArray.from_arrays(ids.offsets, pa.array(rows))

    def check_ids(self, table: pa.Table, at: Where, strict: bool = True) -> Rows:
        """The row of each passage in the corpus, int64 [n]; nothing without a corpus.

        InputError on the first row of `table` with an empty or unknown `query_id` or `passage_id`. With `strict` off, passages may be
        unknown: -1.
        """
        refuse_blank(table, ["query_id", "passage_id"], at)
        self._check_queries(table["query_id"], at)
        if self.store is None:
            return np.empty(0, np.int64)
        rows = self.store.rows_of(table["passage_id"])
        if strict and (rows < 0).any():
            row = int(np.argmax(rows < 0))
            raise InputError(f"names passage {table['passage_id'][row].as_py()!r}, which the corpus does not have", at(row), _FIX)
        return rows

    def _check_queries(self, ids: pa.ChunkedArray, at: Where) -> None:
        if self.query_ids is None:
            return
        unknown = self.query_ids.positions_of_rows(ids) < 0
        if unknown.any():
            row = int(np.argmax(unknown))
            raise InputError(f"names query {ids[row].as_py()!r}, which the queries do not have", at(row), _FIX)

    def generated(self, blocks: Iterable[pa.ChunkedArray]) -> None:
        """Write the queries that were generated for the passages of the corpus: lists of texts, in its order. Empty texts are left out."""
        assert self.store is not None
        draft = self.dataset.part("generated", "generated")
        made = draft.done
        if made is None:
            lists = _in_files(iter(blocks), [stop - start for start, stop in self.store.shards], draft.place)
            for part, ((start, _), found) in enumerate(zip(self.store.shards, lists, strict=True)):
                kept, empty = _filled(found)
                commit_queries(draft, f"generated-{part:05d}.arrow", start, kept, queries=len(kept.values), empty=empty)
            notes = [file.note for file in draft.committed().values()]
            counts = {key: sum(note[key] for note in notes) for key in ("queries", "empty")}
            made = draft.finish(len(self.store), corpus=self.store.fingerprint, **counts)
        self.dataset.keep("generated", made)
        self.parts += 1

    def _table(self, name: str, kind: str, table: pa.Table, **summary: str) -> None:
        self.dataset.table(name, kind, table, **summary)
        self.parts += 1


def without_empty_answers(queries: pa.Table) -> pa.Table:
    """The queries with a list of `answers` each, or without the column where none has any, as in BEIR's own sets."""
    answers = pc.coalesce(queries["answers"], pa.scalar([], queries["answers"].type))
    if pc.any(pc.greater(pc.list_value_length(answers), 0)).as_py():
        return queries.set_column(queries.column_names.index("answers"), "answers", answers)
    return queries.drop_columns(["answers"])


def without_repeats(table: pa.Table, keys: list[str]) -> pa.Table:
    """The rows with the first occurrence of each combination of `keys`, in order."""
    numbered = table.select(keys).append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(keys, use_threads=False).aggregate([("row", "min")])["row_min"]
    return table.take(pa.array(np.sort(first.to_numpy())))


def _in_files(blocks: Iterator[pa.ChunkedArray], sizes: list[int], where: object) -> Iterator[pa.ChunkedArray]:
    """The values of the blocks, in pieces of these sizes; InputError where there are fewer."""
    held = next(blocks)
    for size in sizes:
        while len(held) < size:
            if (more := next(blocks, None)) is None:
                raise InputError("its input has fewer lines than when the passages were read", where, "import it when it no longer changes")
            held = one_column([held, more])
        yield held.slice(0, size)
        held = held.slice(size)


def _filled(lists: pa.ChunkedArray) -> tuple[pa.ListArray, int]:
    """Lists of texts without those that are empty, and how many these were; a list that is null becomes an empty one."""
    lists = lists.combine_chunks()
    texts, owner = pc.list_flatten(lists), pc.list_parent_indices(lists)
    filled = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    counts = np.bincount(owner.filter(filled).to_numpy(), minlength=len(lists))
    kept = texts.filter(filled)
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), kept), len(texts) - len(kept)


def _without_emptied(given: pa.Table, table: pa.Table, split: str) -> pa.Table:
    """Without the examples whose negatives were all positives, which a training with negatives would refuse; all, if it is all of them."""
    before, after = (pc.list_value_length(one["negatives"]) for one in (given, table))
    emptied = pc.fill_null(pc.and_(pc.greater(before, 0), pc.equal(after, 0)), False)
    count = pc.sum(emptied).as_py()
    if not 0 < count < len(table):
        return table
    say(f"import examples/{split}: left out {count:,} of {len(table):,} examples whose negatives are all positives")
    return table.filter(pc.invert(emptied))
