"""The texts of training examples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import PassageStore
from raydense.data.tables import one_array


class Texts:
    """Queries by position, passages by row."""

    def __init__(self, queries: pa.Table, store: PassageStore) -> None:
        self._queries = one_array(queries["text"])
        self.store = store

    def queries(self, positions: NDArray[np.int64]) -> list[str]:
        """The texts of the queries at `positions`."""
        return self._queries.take(pa.array(positions)).to_pylist()

    def passages(self, rows: NDArray[np.int64]) -> list[str]:
        """The texts of the passages at `rows`, as a model reads them."""
        return self.store.passages(rows)
