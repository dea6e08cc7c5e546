"""The passage store: a corpus artifact, memory-mapped, read by row; ids are looked up without a dict of them.

A corpus is a list of Arrow IPC files (`corpus-00000.arrow`, ...) with `passage_id`, `title`, `text` and perhaps `doc_id`. A
passage's row is its position in the corpus. Next to them are `id_hash.npy` (sorted) with `id_row.npy`, and `text_hash.npy` by row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.lookup import each_once, hash_strings, joined, places_of
from raydense.data.tables import one_column
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.storage import Artifact, Draft, Place

_MOST_FILES = 100_000  # their order is that of their names
_BATCH_ROWS = 8_192
_BATCH_BYTES = 2**30  # of text: a string column of one batch holds at most 2 GiB, with a title joined to each text, too
Rows = NDArray[np.int64]


class PassageStore:
    """Random access to the passages of a corpus; picklable: it is opened again from its path.

    InputError if the corpus does not have `fingerprint`: it was replaced since a stage began.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str | None = None) -> None:
        self.artifact = Artifact.open(path, "corpus", fingerprint)
        files = [f for f in self.artifact.files if f.path.startswith("corpus-")]
        ends = np.cumsum([f.rows for f in files], dtype=np.int64)
        self.shards: list[tuple[int, int]] = [(int(e - f.rows), int(e)) for f, e in zip(files, ends, strict=True)]
        self._names = [f.path for f in files]
        self._edges: Rows = np.concatenate([[0], ends]).astype(np.int64)
        self._mapped: dict[int, tuple[list[pa.RecordBatch], Rows]] = {}

    def __reduce__(self) -> tuple[type[PassageStore], tuple[str, str]]:
        return PassageStore, (self.artifact.located, self.fingerprint)  # a worker may have another working directory

    def __len__(self) -> int:
        return self.artifact.rows

    @property
    def path(self) -> Place:
        """Where the corpus was opened: a folder, or a path in a bucket."""
        return self.artifact.place

    @property
    def fingerprint(self) -> str:
        return self.artifact.fingerprint

    def _file(self, number: int) -> tuple[list[pa.RecordBatch], Rows]:
        """The batches of a file, mapped on first use, with the first row of each and the end of the last."""
        if number not in self._mapped:
            reader = pa.ipc.open_file(pa.memory_map(str(self.artifact.file(self._names[number]))))
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            self._mapped[number] = batches, self._edges[number] + np.cumsum([0, *(b.num_rows for b in batches)], dtype=np.int64)
        return self._mapped[number]

    def _pieces(self, rising: Rows) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        """The batches that hold these rising rows, each with the rows' positions in it."""
        edges = np.searchsorted(rising, self._edges)
        for file in np.flatnonzero(np.diff(edges)).tolist():
            batches, firsts = self._file(file)
            mine = rising[edges[file] : edges[file + 1]]
            cuts = np.searchsorted(mine, firsts)
            for number in np.flatnonzero(np.diff(cuts)).tolist():
                yield batches[number], mine[cuts[number] : cuts[number + 1]] - firsts[number]

    @cached_property
    def text_hash(self) -> NDArray[np.uint64]:
        """A hash of each passage's text, by row: equal texts have equal hashes. uint64 [n], memory-mapped."""
        return np.load(self.artifact.file("text_hash.npy"), mmap_mode="r")

    def take(self, rows: Rows, columns: list[str] | None = None) -> pa.Table:
        """The passages at `rows` (int64 [n], in their order, repeats allowed) as a table, whose columns have a chunk for each GiB of text."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must be in 0..{len(self) - 1}, got {rows.min()}..{rows.max()}")
        if not rows.size:
            none = self._file(0)[0][0].slice(0, 0)
            return pa.Table.from_batches([none.select(columns) if columns else none])
        rising, back = np.unique(rows, return_inverse=True)
        parts = [(batch.select(columns) if columns else batch).take(pa.array(at)) for batch, at in self._pieces(rising)]
        table = pa.Table.from_batches(parts).combine_chunks()
        # few even if the longest is wanted each time: not to look at the lengths takes half as long
        if table.nbytes * len(rows) <= _BATCH_BYTES or not (cuts := _cuts(_bytes_of(table)[back])).size:
            return table.take(pa.array(back))
        del parts, table  # before the pieces are taken
        return pa.concat_tables([self.take(piece, columns) for piece in np.split(rows, cuts)])

    def slice(self, start: int, stop: int, columns: list[str] | None = None) -> pa.Table:
        """The passages of rows start..stop-1, without a copy."""
        parts = []
        while start < stop:
            batches, firsts = self._file(int(np.searchsorted(self._edges, start, side="right")) - 1)
            number = int(np.searchsorted(firsts, start, side="right")) - 1
            part = batches[number].slice(start - int(firsts[number]), stop - start)
            parts.append(part.select(columns) if columns else part)
            start += part.num_rows
        return pa.Table.from_batches(parts)

    def passages(self, rows: Rows) -> list[str]:
        """The text of each passage as a model reads it: title, blank, text."""
        distinct, number = np.unique(rows, return_inverse=True)
        texts = full_text(self.take(distinct, ["title", "text"])).to_pylist()
        return [texts[at] for at in number.tolist()]

    def ids(self, rows: Rows) -> pa.Array:
        """The passage ids at `rows`."""
        return self.take(rows, ["passage_id"])["passage_id"].combine_chunks()

    def write_ids(self, path: Path) -> None:
        """Write all passage ids, by row, as an Arrow file of the column `passage_id`."""
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("passage_id", pa.string())])) as writer:
            for start, stop in self.shards:
                writer.write_table(self.slice(start, stop, ["passage_id"]))

    def rows_of(self, ids: pa.Array | pa.ChunkedArray | Iterable[str]) -> Rows:
        """The row of each id, int64 [n]; -1 for an id that the corpus does not have."""
        if isinstance(ids, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *map(self.rows_of, joined(ids))])
        known, known_rows = self._id_hash
        return places_of(known, known_rows, ids if isinstance(ids, pa.Array) else pa.array(ids, pa.string()), self.ids)

    def rows_of_texts(self, texts: pa.ChunkedArray) -> Rows:
        """The first row with each text (without a title), int64 [n]; -1 for a text that no passage has. Sorts the texts' hashes once."""
        known, rows = self._text_rows
        return each_once(texts, lambda wanted: places_of(known, rows, wanted, self._texts))

    def _texts(self, rows: Rows) -> pa.Array:
        return self.take(rows, ["text"])["text"].combine_chunks()

    @cached_property
    def _text_rows(self) -> tuple[NDArray[np.uint64], Rows]:
        order = np.argsort(self.text_hash, kind="stable")
        return self.text_hash[order], order

    def refuse_rows_of_another(self, artifact: Artifact) -> None:
        """InputError if `artifact` (training examples, an index, a run) was made with another corpus; not every artifact names its own."""
        made_with = artifact.summary.get("corpus")
        if made_with not in (None, self.fingerprint):
            raise InputError(
                f"was made with another corpus than {self.path} ({made_with[:8]}, not {self.fingerprint[:8]})",
                artifact.place,
                "give the corpus that it was made with, or make it again with this one",
            )

    def known_rows(self, ids: pa.ChunkedArray, where: object) -> Rows:
        """As `rows_of`, but each distinct id is looked up once; InputError with the first unknown id, and `where` it is."""
        rows = each_once(ids, self.rows_of)
        if (rows < 0).any():
            raise self._unknown(ids[int(np.argmax(rows < 0))].as_py(), where)
        return rows

    def known_judgements(self, qrels: pa.Table, where: object) -> pa.Table:
        """The judgements of passages that the corpus has; InputError where it has none of them: they are of another corpus."""
        known = each_once(qrels["passage_id"], self.rows_of) >= 0
        if len(known) and not known.any():
            raise self._unknown(qrels["passage_id"][0].as_py(), where)
        return qrels.filter(pa.array(known))

    def say_lacking(self, stage: str, lacking: int, judged: int, where: object) -> None:
        """Say how many judgements a stage leaves out, if some, as those that `import --no-strict` keeps."""
        if lacking:
            say(f"{stage}: {lacking:,} of {judged:,} judgements of {where} name passages that the corpus lacks: left out")

    def _unknown(self, passage_id: str, where: object) -> InputError:
        what = f"names passage {passage_id!r}, which the corpus {self.path} does not have"
        fix = "give the corpus that it was made from; or, after import --no-strict, import strictly to find the line"
        return InputError(what, where, fix)

    @cached_property
    def _id_hash(self) -> tuple[NDArray[np.uint64], Rows]:
        return np.load(self.artifact.file("id_hash.npy"), mmap_mode="r"), np.load(self.artifact.file("id_row.npy"), mmap_mode="r")


@lru_cache(maxsize=1)
def store_of(path: str, fingerprint: str) -> PassageStore:
    """As `PassageStore`, kept open by a worker process from task to task."""
    return PassageStore(path, fingerprint)


def full_text(table: pa.Table) -> pa.ChunkedArray:
    """Title and text of each row of `table`, joined by a space; the text alone if there is no title."""
    return pc.utf8_trim_whitespace(pc.binary_join_element_wise(table["title"], table["text"], " "))


class CorpusWriter:
    """Writes a stream of passages into a corpus draft, a file of `shard_rows` passages at a time; holds one file in memory.

    `where(row)` is the origin of a passage (`corpus.jsonl:17`), for messages. With `strict` off, passages without text are
    accepted, and counted in `blank`. With `titles` off, titles are left out; that of a passage without text becomes its text.
    """

    def __init__(
        self,
        draft: Draft,
        shard_rows: int,
        where: Callable[[int], str] = lambda row: f"passage {row}",
        strict: bool = True,
        titles: bool = True,
    ) -> None:
        self.draft, self.shard_rows, self.where, self.strict, self.titles = draft, shard_rows, where, strict, titles
        self.rows = self.blank = self._shard = self._held_rows = 0
        self._held: list[pa.Table] = []
        self._id_hashes: list[NDArray[np.uint64]] = []
        self._text_hashes: list[NDArray[np.uint64]] = []

    def add(self, table: pa.Table) -> None:
        """Add passages with `passage_id`, `title`, `text` (strings) and optionally `doc_id`; InputError on an empty id or text."""
        names = ["passage_id", "title", "text"] + (["doc_id"] if "doc_id" in table.column_names else [])
        table = table.select(names).cast(pa.schema([(n, pa.string()) for n in names]))
        table = table.set_column(1, "title", pc.fill_null(table["title"], ""))
        if not self.strict:
            table = table.set_column(2, "text", pc.fill_null(table["text"], ""))
        for name in ("passage_id", "text"):
            blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(pc.fill_null(table[name], ""))), 0)
            if name == "text" and not self.strict:
                self.blank += pc.sum(blank).as_py() or 0
            elif pc.any(blank).as_py():
                row = self.rows + pc.index(blank, pa.scalar(True)).as_py()
                raise InputError(f"empty {name}", self.where(row), "fill it, or remove the passage")
        self._id_hashes.append(hash_strings(table["passage_id"]))
        # without text the title is all that distinguishes a passage
        texts = pc.if_else(blank, table["title"], table["text"]) if self.blank else table["text"]
        self._text_hashes.append(hash_strings(texts))
        if not self.titles:
            table = table.set_column(1, "title", pa.repeat("", table.num_rows)).set_column(2, "text", texts)
        self.rows += table.num_rows
        self._held.append(table)
        self._held_rows += table.num_rows
        while self._held_rows >= self.shard_rows:
            self._flush(self.shard_rows)

    def _flush(self, count: int) -> None:
        if self._shard == _MOST_FILES:
            raise InputError(f"more than {_MOST_FILES:,} files of {self.shard_rows:,} passages", "shard_rows", "give a greater one")
        held = pa.concat_tables(self._held)
        table = held.slice(0, count)
        self._held, self._held_rows = [held.slice(count)], held.num_rows - table.num_rows

        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                for start in range(0, table.num_rows, _BATCH_ROWS):
                    for batch in _pieces_of(table.slice(start, _BATCH_ROWS)):
                        writer.write_table(_copied(batch))

        self.draft.commit(f"corpus-{self._shard:05d}.arrow", write, table.num_rows)
        self._shard += 1

    def finish(self, **summary: object) -> Artifact:
        """Write what is left and the id index; InputError on a duplicate id or an empty corpus."""
        if self._held_rows:
            self._flush(self._held_rows)
        if not self.rows:
            raise InputError("no passages", self.draft.place, "give an input that has some")
        id_hash = np.concatenate(self._id_hashes)
        order = np.argsort(id_hash, kind="stable")
        id_hash = id_hash[order]
        self._refuse_duplicates(id_hash, order)
        arrays = {"id_hash": id_hash, "id_row": order.astype(np.int64), "text_hash": np.concatenate(self._text_hashes)}
        for name, array in arrays.items():
            self.draft.commit(f"{name}.npy", partial(_save_array, array), 0)
        return self.draft.finish(self.rows, **summary)

    def _refuse_duplicates(self, id_hash: NDArray[np.uint64], order: Rows) -> None:
        same = np.flatnonzero(id_hash[1:] == id_hash[:-1])
        if not same.size:
            return
        rows = np.unique(np.concatenate([order[same], order[same + 1]]))
        seen: dict[str, int] = {}
        for row, passage_id in zip(rows.tolist(), self._ids_written(rows), strict=True):
            if passage_id in seen:
                raise InputError(
                    f"passage_id {passage_id!r} is repeated (first at {self.where(seen[passage_id])})",
                    self.where(row),
                    "make ids unique",
                )
            seen[passage_id] = row

    def _ids_written(self, rows: Rows) -> Iterable[str]:
        files = [self.draft.read(f"corpus-{shard:05d}.arrow") for shard in range(self._shard)]
        columns = [pa.ipc.open_file(pa.memory_map(str(f))).read_all()["passage_id"] for f in files]
        ids = one_column(columns)
        return (ids[row].as_py() for row in rows.tolist())


def _bytes_of(table: pa.Table) -> Rows:
    """The bytes of the strings of each row."""
    lengths = [pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64) for column in table.columns]
    return np.sum(lengths, axis=0)


def _cuts(sizes: Rows) -> Rows:
    """Where rows of these bytes are cut, so that each piece has about _BATCH_BYTES or less."""
    return np.flatnonzero(np.diff(np.cumsum(sizes) // _BATCH_BYTES)) + 1


def _pieces_of(table: pa.Table) -> Iterator[pa.Table]:
    edges = [0, *_cuts(_bytes_of(table)).tolist(), table.num_rows]
    return (table.slice(start, stop - start) for start, stop in pairwise(edges))


def _copied(table: pa.Table) -> pa.Table:
    # Arrow pads the strings of a slice with the bytes of the rows that follow it: what a file has would depend on how the rows arrived
    return pa.table([pa.concat_arrays(column.chunks) for column in table.columns], schema=table.schema)


def _save_array(array: NDArray[Any], path: Path) -> None:
    np.save(path, array)
