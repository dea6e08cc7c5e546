"""Generated queries: a list of texts for each passage of a corpus, by row, memory-mapped from Arrow files."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore, Rows
from raydense.data.tables import write_arrow
from raydense.errors import InputError
from raydense.storage import Artifact, Draft, File

SCHEMA = pa.schema([("row", pa.int64()), ("queries", pa.list_(pa.string()))])


def commit_queries(draft: Draft, name: str, start: int, lists: list[list[str]] | pa.ListArray, **note: Any) -> File:
    """Commit the lists of queries of the passages from row `start` on as the Arrow file `name`."""
    rows = np.arange(start, start + len(lists))
    queries = lists if isinstance(lists, pa.Array) else pa.array(lists, pa.list_(pa.string()))
    table = pa.table({"row": pa.array(rows), "queries": queries}, schema=SCHEMA)
    return draft.commit(name, lambda path: write_arrow(path, table), len(lists), **note)


class Generated:
    """The `generated` artifact of a corpus. `ranges` has [start, stop) rows by file."""

    def __init__(self, path: str | os.PathLike[str], store: PassageStore | None = None, fingerprint: str | None = None) -> None:
        """InputError if it was made for another corpus than `store`, or does not have `fingerprint`: it was replaced since a stage began."""
        self.artifact = Artifact.open(path, "generated", fingerprint)
        if store is not None and self.artifact.summary["corpus"] != store.fingerprint:
            raise InputError("was generated for another corpus", path, f"generate queries for {store.path}, or give its own corpus")
        files = [file for file in self.artifact.files if file.path.endswith(".arrow")]
        ends = np.cumsum([file.rows for file in files], dtype=np.int64).tolist()
        self.ranges: dict[str, tuple[int, int]] = {f.path: (end - f.rows, end) for f, end in zip(files, ends, strict=True)}

    @property
    def origin(self) -> str:
        """The fingerprint of what `generate` wrote, also if `filter` has removed queries since."""
        return str(self.artifact.summary.get("origin", self.artifact.fingerprint))

    def __len__(self) -> int:
        return self.artifact.rows

    @cached_property
    def _parts(self) -> list[pa.ListArray]:
        tables = [pa.ipc.open_file(pa.memory_map(str(self.artifact.file(name)))).read_all() for name in self.ranges]
        return [chunk for table in tables for chunk in table["queries"].chunks]

    @cached_property
    def _starts(self) -> Rows:
        return np.cumsum([0, *map(len, self._parts)], dtype=np.int64)

    def counts(self) -> NDArray[np.int64]:
        """How many queries each passage has, int64 [n]."""
        return np.concatenate([np.zeros(0, np.int64), *(part.value_lengths().to_numpy().astype(np.int64) for part in self._parts)])

    def slice(self, start: int, stop: int) -> pa.Array:
        """The lists of the passages of rows start..stop-1."""
        first, last = np.searchsorted(self._starts, [start, max(start, stop - 1)], side="right") - 1
        parts = self._parts[first : last + 1]
        lists = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)  # concat_arrays copies even a single array
        return lists.slice(start - int(self._starts[first]), stop - start)

    def pick(self, rows: Rows, numbers: NDArray[np.float64]) -> list[str]:
        """One query of each passage at `rows` (each must have one), chosen by `numbers` float64 [n] in [0, 1)."""
        where = np.searchsorted(self._starts, rows, side="right") - 1
        texts = np.empty(len(rows), dtype=object)
        for number in np.unique(where):
            mine = np.flatnonzero(where == number)
            part, at = self._parts[number], rows[mine] - self._starts[number]
            offsets = part.offsets.to_numpy().astype(np.int64)
            counts = offsets[at + 1] - offsets[at]
            texts[mine] = part.values.take(pa.array(offsets[at] + (numbers[mine] * counts).astype(np.int64))).to_pylist()
        return texts.tolist()
