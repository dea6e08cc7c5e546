"""The passage ids of an index by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raydense.retrieval.merge import Rows
from raydense.storage import Artifact


class PassageIds:
    """The ids, memory-mapped."""

    def __init__(self, index: Artifact) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(index.file("passage_ids.arrow"))))
        self._batches = [reader.get_batch(i).column("passage_id") for i in range(reader.num_record_batches)]
        self._starts = np.cumsum([0, *map(len, self._batches)])

    def take(self, rows: Rows) -> pa.Array:
        """The ids at `rows` (int64 [n], each known), in their order."""
        if len(rows) == 0:
            return pa.array([], pa.string())
        used, back = np.unique(rows, return_inverse=True)
        cuts = np.searchsorted(used, self._starts)
        hit = np.flatnonzero(np.diff(cuts)).tolist()
        parts = [self._batches[at].take(pa.array(used[cuts[at] : cuts[at + 1]] - self._starts[at])) for at in hit]
        return pa.concat_arrays(parts).take(pa.array(back))
