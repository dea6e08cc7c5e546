"""Reads the vectors of an embeddings artifact by row, memory-mapped and without a copy, as FAISS takes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.errors import InputError
from raydense.storage import Artifact

_BLOCK_ROWS = 65_536


class Vectors:
    """The vectors of an embeddings artifact; picklable by its folder.

    InputError where they are not `of` passages, or of queries, or the artifact is not that of `fingerprint`.
    """

    def __init__(
        self, folder: str | os.PathLike[str], of: Literal["passages", "queries"] = "passages", fingerprint: str | None = None
    ) -> None:
        self.artifact = Artifact.open(folder, "embeddings", fingerprint)
        there = self.artifact.summary.get("of", "passages")
        if there != of:
            fix = "encode with --corpus" if of == "passages" else "encode with --queries"
            raise InputError(f"holds vectors of {there}, not of {of}", self.artifact.place, fix)
        self.rows = self.artifact.rows
        self.dimension = int(self.artifact.summary["dimension"])

    @cached_property
    def _batches(self) -> list[NDArray[np.floating]]:
        batches: list[NDArray[np.floating]] = []
        row = 0
        for path in self.artifact.parts(".arrow", "embeddings-"):
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                column = batch.column("embedding")
                vectors = column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), self.dimension)
                if not np.array_equal(batch.column("row").to_numpy(), np.arange(row, row + len(vectors))):
                    raise InputError(f"its rows do not go on from {row}", path, "delete the embeddings and make them again")
                batches.append(vectors)
                row += len(vectors)
        if row != self.rows:
            raise InputError(f"holds {row} vectors, not {self.rows}", self.artifact.place, "delete the embeddings and make them again")
        return batches

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(b) for b in self._batches)], dtype=np.int64)

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        """The vectors of rows start..stop-1, in order, float32 [at most 65,536, d]; a view where they are float32 already."""
        for batch, first in zip(self._batches, self._starts, strict=False):
            low, high = max(start - int(first), 0), min(stop - int(first), len(batch))
            for at in range(low, high, _BLOCK_ROWS):
                yield np.ascontiguousarray(batch[at : min(at + _BLOCK_ROWS, high)], dtype=np.float32)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors at `rows` (int64 [n], rising), float32 [n, d]."""
        taken = np.empty((len(rows), self.dimension), dtype=np.float32)
        cuts = np.searchsorted(rows, self._starts)
        for batch, first, low, high in zip(self._batches, self._starts, cuts, cuts[1:], strict=False):
            taken[low:high] = batch[rows[low:high] - first]
        return taken
