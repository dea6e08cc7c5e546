"""What the writers of formats read: the given artifacts, opened on first use, and streams of rows and texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydense.data.dataset import parts_of, refuse_part_name
from raydense.data.lookup import IdLookup
from raydense.data.runs import query_blocks
from raydense.data.settings import ExportSettings
from raydense.data.store import PassageStore, Rows
from raydense.data.tables import one_column, query_starts, read_table, unknown_query
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.storage import Artifact, Place, read_manifest

_STEP = 8_192


class Passage(NamedTuple):
    """A passage as in a training file: id, title and text."""

    passage_id: str
    title: str
    text: str


class Example(NamedTuple):
    """A training example with its texts."""

    query_id: str
    query: str
    answers: list[str]
    positives: list[Passage]
    negatives: list[Passage]
    positive_scores: list[float] | None
    negative_scores: list[float] | None


class Found(NamedTuple):
    """What a run found for a query, best first, with its texts."""

    query: str
    answers: list[str]
    passages: list[Passage]
    scores: list[str]


class Outlet:
    """The artifacts to write and the path to write to."""

    def __init__(self, settings: ExportSettings, path: Path) -> None:
        self.settings, self.path = settings, path
        kinds = ("dataset", "run", "corpus", "queries", "qrels", "examples", "index", "embeddings", "model", "report")
        self.given = [name for name in kinds if getattr(settings, name)]

    def choose(self, *kinds: str, spelled: tuple[str, ...] = ("examples",)) -> str:
        """The one of `kinds` that was given; with one of `spelled` come corpus and queries, for the texts of its ids. InputError otherwise."""
        name = self.settings.format
        by_text = [kind for kind in kinds if kind in self.given and kind in spelled]
        chosen = by_text or [kind for kind in kinds if kind in self.given]
        texts = ("corpus", "queries") if by_text else ()
        if len(chosen) != 1 or any(kind not in (*chosen, *texts) for kind in self.given):
            raise InputError(
                f"format {name} does not write {' with '.join(self.given) or 'nothing'}", "export", f"give one of: {', '.join(kinds)}"
            )
        if not set(texts) <= set(self.given):
            raise InputError(f"{chosen[0]} without the texts of its ids", "export", "give --corpus and --queries too")
        return chosen[0]

    def choose_parts(self, *kinds: str) -> dict[str, str]:
        """Those of `parts` whose kinds the format holds: at least one. InputError if one of another kind was given by itself."""
        held = {name: path for name, path in self.parts.items() if name.split("/")[0] in kinds}
        left = sorted(self.parts.keys() - held.keys())
        if not held or (left and "dataset" not in self.given):
            given = self.given if left else ["nothing"]
            raise InputError(
                f"format {self.settings.format} does not write {' with '.join(given)}", "export", f"give {', '.join(kinds)}, or a dataset"
            )
        if left:
            say(f"export: leaves out {', '.join(left)}, which the format {self.settings.format} does not hold")
        return held

    @cached_property
    def parts(self) -> dict[str, str]:
        """What is given, by the name that it has in a data set (corpus, queries, qrels/<split>, ...): the folders."""
        judged = {f"qrels/{split}": folder for split, folder in self.settings.splits.items()}
        if self.settings.dataset:
            for name in judged:
                refuse_part_name(name, lambda: "qrels")
            return parts_of(Artifact.open(self.settings.dataset, "dataset"), judged) | judged
        given = {name: getattr(self.settings, name) for name in self.given if name != "qrels"}
        return {name if name in ("corpus", "queries") else f"{name}/{Place.of(path).name}": path for name, path in given.items()} | judged

    @cached_property
    def store(self) -> PassageStore:
        return PassageStore(self.parts["corpus"])

    @cached_property
    def queries(self) -> pa.Table:
        """The queries, without those that only judgements name in whose place others are given: `overlap` removed them, for instance."""
        table = read_table(self.parts["queries"], "queries")
        kept = self._without_removed(table)
        if len(kept) < len(table):
            say(f"export: leaves out {len(table) - len(kept):,} queries that only the judgements named in whose place others are given")
        return kept

    def _without_removed(self, table: pa.Table) -> pa.Table:
        return table.filter(pc.invert(pc.is_in(table["query_id"], value_set=self._removed)))

    @cached_property
    def _removed(self) -> pa.Array:
        left = self._judged(self._replaced)
        return left.filter(pc.invert(pc.is_in(left, value_set=self._judged([path for _, path in splits_of(self.parts, "qrels")]))))

    @cached_property
    def _asked(self) -> IdLookup:
        return IdLookup(self.queries["query_id"])

    @property
    def _replaced(self) -> list[str]:
        """The folders of the data set's own judgements, where others are given."""
        own = [Place.of(self.settings.dataset) / f"qrels/{split}" for split in self.settings.splits] if self.settings.dataset else []
        return [str(place) for place in own if read_manifest(place) is not None]

    def _judged(self, folders: list[str]) -> pa.Array:
        """The ids of the queries that some judgements name, each once."""
        ids = [read_table(folder, "qrels", ["query_id"])["query_id"] for folder in folders]
        return pc.unique(one_column(ids))

    def qrels(self) -> pa.Table:
        """All rows of the given qrels; InputError if several are given."""
        if len(self.settings.qrels) > 1:
            what = f"format {self.settings.format} writes one file, and {len(self.settings.qrels)} sets of qrels are given"
            raise InputError(what, "export", "give one of them")
        return read_table(next(iter(self.settings.splits.values())), "qrels")

    def run(self) -> Iterator[pa.Table]:
        """The given run, some thousand rows at a time."""
        for part in Artifact.open(str(self.settings.run), "run").parts(".parquet"):
            for batch in pq.ParquetFile(part).iter_batches(8 * _STEP):
                yield pa.Table.from_batches([batch])

    def found(self) -> Iterator[Found]:
        """The hits of the given run, query by query, with their texts; InputError on an id that the corpus or the queries do not have."""
        run = Artifact.open(str(self.settings.run), "run")
        self.store.refuse_rows_of_another(run)
        for block in query_blocks(run.parts(".parquet"), _STEP):
            starts = query_starts(block["query_id"])
            asked = self._asked_of(block["query_id"].take(pa.array(starts[:-1])), run.place)
            rows, scores = self.store.known_rows(block["passage_id"], run.place), exact(block["score"])
            passages = self._passages_at(rows)
            for query, (start, stop) in zip(asked, pairwise(starts.tolist()), strict=True):
                yield Found(query["text"], query.get("answers") or [], [passages[r] for r in rows[start:stop].tolist()], scores[start:stop])

    def passages(self) -> Iterator[pa.Table]:
        """The whole corpus, some thousand passages at a time."""
        for start in range(0, len(self.store), _STEP):
            yield self.store.slice(start, min(start + _STEP, len(self.store)), ["passage_id", "title", "text"])

    def examples(self, path: str | None = None) -> Iterator[Example]:
        """The training examples, given or at `path`, with the texts of their rows and ids; without those of queries that `queries` leaves out."""
        path = path or str(self.settings.examples)
        self.store.refuse_rows_of_another(Artifact.open(path, "examples"))
        table = self._without_removed(every := read_table(path, "examples"))
        if len(table) < len(every):
            say(f"export: leaves out {len(every) - len(table):,} of {len(every):,} examples of {Place.of(path).name}, of these queries")
        for start in range(0, table.num_rows, _STEP // 8):
            yield from self._spelled(table.slice(start, _STEP // 8), path)

    def triples(self, path: str | None = None) -> Iterator[Example]:
        """The examples with as many positives and negatives as the longer of their lists has, the other one repeated, and without scores.

        Examples without a negative are left out, and counted.
        """
        path, bare = path or str(self.settings.examples), 0
        for example in self.examples(path):
            if example.negatives:
                rows = max(len(example.positives), len(example.negatives))
                positives, negatives = (list(islice(cycle(side), rows)) for side in (example.positives, example.negatives))
                yield Example(example.query_id, example.query, example.answers, positives, negatives, None, None)
            bare += not example.negatives
        if bare:
            say(f"export {Place.of(path).name}: leaves out {bare:,} examples without a negative")

    def _spelled(self, table: pa.Table, path: str) -> Iterator[Example]:
        entries = table.to_pylist()
        rows = np.unique(np.array([r for e in entries for r in (*e["positives"], *e["negatives"])], dtype=np.int64))
        if rows.size and (rows[0] < 0 or rows[-1] >= len(self.store)):
            raise InputError("the examples name passages that the corpus does not have", path, "give their own corpus")
        spelled = self._passages_at(rows)
        for entry, query in zip(entries, self._asked_of(table["query_id"], path), strict=True):
            yield Example(
                entry["query_id"],
                query["text"],
                query.get("answers") or [],
                [spelled[r] for r in entry["positives"]],
                [spelled[r] for r in entry["negatives"]],
                _short(entry.get("positive_scores")),
                _short(entry.get("negative_scores")),
            )

    def _passages_at(self, rows: Rows) -> dict[int, Passage]:
        """The passages at these rows, each once."""
        rows = np.unique(rows)
        found = self.store.take(rows, ["passage_id", "title", "text"]).to_pydict()
        return dict(zip(rows.tolist(), map(Passage, found["passage_id"], found["title"], found["text"]), strict=True))

    def _asked_of(self, ids: pa.ChunkedArray, where: object) -> list[dict[str, Any]]:
        """The queries of these ids; InputError on one that the queries do not have."""
        positions = self._asked.positions(ids)
        if (unknown := np.flatnonzero(positions < 0)).size:
            raise unknown_query(ids[int(unknown[0])].as_py(), where)
        return list(self.queries.take(pa.array(positions)).to_pylist())


def splits_of(parts: dict[str, str], kind: str) -> list[tuple[str, str]]:
    """The splits of a kind of part, each with its folder; `all` where a data set has only one, without a name."""
    return [(name.partition("/")[2] or "all", path) for name, path in parts.items() if name.split("/")[0] == kind]


def write_columns(path: Path, tables: Iterable[dict[str, Iterable[Any]]], apart: str = "\t", header: str = "") -> None:
    """Write the rows of tables as columns separated by `apart`, a tab or a blank; InputError if a cell contains a separator of cells or lines.

    Of columns apart by blanks, any white space separates cells for some readers.
    """
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(f"{header}\n" if header else "")
        for table in tables:
            for row in zip(*table.values(), strict=True):
                cells = [cell if isinstance(cell, str) else str(cell) for cell in row]
                line = apart.join(cells)
                held = line.split() if apart == " " else line.split(apart)
                if held != cells or "\n" in line or "\r" in line:
                    raise InputError(
                        f"{cells[0]!r} has a cell with a blank or line break that the format cannot hold", "export", "use another format"
                    )
                stream.write(line + "\n")


def _short(scores: list[float] | None) -> list[float] | None:
    """float32 scores as the numbers of fewest digits that read back as the same float32: 0.98, not 0.9800000190734863."""
    return None if scores is None or None in scores else [float(str(np.float32(score))) for score in scores]


def exact(scores: pa.ChunkedArray) -> list[str]:
    """float32 scores in the shortest digits that read back as the same float32."""
    return [str(score) for score in scores.to_numpy()]
