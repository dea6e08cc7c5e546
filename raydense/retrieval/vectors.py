"""Reads the vectors of an embeddings artifact by row, memory-mapped and without a copy."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.storage import Artifact

BLOCK_ROWS = 65_536


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
        self._mapped: tuple[int, mmap.mmap, list[tuple[int, NDArray[np.floating]]]] | None = None  # the last file alone: of one
        # that the cache of a bucket removes, the disk stays taken as long as it is mapped

    def __reduce__(self) -> tuple[type[Vectors], tuple[str, Literal["passages", "queries"], str]]:
        return Vectors, (self.artifact.located, self.of, self.artifact.fingerprint)

    def _batches(self, number: int) -> Iterator[tuple[int, NDArray[np.floating], mmap.mmap]]:
        """The first row, the vectors and the mapping of each batch in a file."""
        if self._mapped is None or self._mapped[0] != number:
            self._mapped = None
            self._mapped = (number, *self._map(self._files[number].path, int(self._edges[number])))
        _, mapped, batches = self._mapped
        yield from ((first, batch, mapped) for first, batch in batches)

    def _map(self, name: str, row: int) -> tuple[mmap.mmap, list[tuple[int, NDArray[np.floating]]]]:
        path = self.artifact.file(name)
        with open(path, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        reader, batches = pa.ipc.open_file(pa.py_buffer(mapped)), []
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            column = batch.column("embedding")
            vectors = column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), self.dimension)
            if not np.array_equal(batch.column("row").to_numpy(), np.arange(row, row + len(vectors))):
                raise InputError(f"its rows do not continue from {row}", path, "delete the embeddings and make them again")
            batches.append((row, vectors))
            row += len(vectors)
        return mapped, batches

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[np.floating]]:
        """The vectors of rows start..stop-1, in order, [at most 65,536, d] as they are stored, without a copy.

        What was read leaves the memory of this process.
        """
        for number in np.flatnonzero((self._edges[:-1] < stop) & (self._edges[1:] > start)).tolist():
            for first, batch, mapped in self._batches(number):
                low, high = max(start - first, 0), min(stop - first, len(batch))
                for at in range(low, high, BLOCK_ROWS):
                    yield batch[at : min(at + BLOCK_ROWS, high)]
                    mapped.madvise(mmap.MADV_DONTNEED)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors at `rows` (int64 [n], rising), float32 [n, d]; only the files that hold any are opened."""
        taken = np.empty((len(rows), self.dimension), dtype=np.float32)
        for number in np.flatnonzero(np.diff(np.searchsorted(rows, self._edges))).tolist():
            for first, batch, mapped in self._batches(number):
                low, high = np.searchsorted(rows, [first, first + len(batch)])
                taken[low:high] = batch[rows[low:high] - first]
                mapped.madvise(mmap.MADV_DONTNEED)
        return taken
