"""Reads the vectors of an embeddings artifact by row, memory-mapped and without a copy, as FAISS takes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.storage import Artifact

_BLOCK_ROWS = 65_536


class Vectors:
    """The vectors of an embeddings artifact; picklable by its folder.

    InputError if they are not vectors `of` passages or queries as asked, or the artifact does not have `fingerprint`.
    """

    def __init__(
        self, folder: str | os.PathLike[str], of: Literal["passages", "queries"] = "passages", fingerprint: str | None = None
    ) -> None:
        self.artifact = Artifact.open(folder, "embeddings", fingerprint)
        there = self.artifact.summary.get("of", "passages")
        if there != of:
            fix = "encode with --corpus" if of == "passages" else "encode with --queries"
            raise InputError(f"holds vectors of {there}, not of {of}", self.artifact.place, fix)
        self.of, self.rows = of, self.artifact.rows
        self.dimension = int(self.artifact.summary["dimension"])

        self._files = [file for file in self.artifact.files if file.path.startswith("embeddings-") and file.path.endswith(".arrow")]
        self._edges = np.cumsum([0, *(file.rows for file in self._files)], dtype=np.int64)
        if self._edges[-1] != self.rows:
            what = f"holds {self._edges[-1]} vectors, not {self.rows}"
            raise InputError(what, self.artifact.place, "delete the embeddings and make them again")
        self._mapped: dict[int, list[tuple[int, NDArray[np.floating]]]] = {}

    def __reduce__(self) -> tuple[type[Vectors], tuple[str, Literal["passages", "queries"], str]]:
        return Vectors, (self.artifact.located, self.of, self.artifact.fingerprint)

    def _batches(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.floating]]]:
        """The first row and the vectors of each batch in the files that hold any of the rows start..stop-1; a file is mapped once."""
        for number, file in enumerate(self._files):
            if self._edges[number] < stop and self._edges[number + 1] > start:
                if number not in self._mapped:
                    self._mapped[number] = list(self._map(file.path, int(self._edges[number])))
                yield from self._mapped[number]

    def _map(self, name: str, row: int) -> Iterator[tuple[int, NDArray[np.floating]]]:
        path = self.artifact.file(name)
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            column = batch.column("embedding")
            vectors = column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), self.dimension)
            if not np.array_equal(batch.column("row").to_numpy(), np.arange(row, row + len(vectors))):
                raise InputError(f"its rows do not continue from {row}", path, "delete the embeddings and make them again")
            yield row, vectors
            row += len(vectors)

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        """The vectors of rows start..stop-1, in order, float32 [at most 65,536, d]; a view where they are float32 already."""
        for first, batch in self._batches(start, stop):
            low, high = max(start - first, 0), min(stop - first, len(batch))
            for at in range(low, high, _BLOCK_ROWS):
                yield np.ascontiguousarray(batch[at : min(at + _BLOCK_ROWS, high)], dtype=np.float32)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors at `rows` (int64 [n], rising), float32 [n, d]."""
        taken = np.empty((len(rows), self.dimension), dtype=np.float32)
        for first, batch in self._batches(int(rows[0]), int(rows[-1]) + 1) if len(rows) else ():
            low, high = np.searchsorted(rows, [first, first + len(batch)])
            taken[low:high] = batch[rows[low:high] - first]
        return taken
