"""Positions of ids in a list of ids, looked up block after block: the list is hashed once, and no dict of it is held."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raydense.data.store import Rows, hash_strings, places_of


class IdLookup:
    """Finds ids in `ids`, a list without repetition. Holds 16 bytes an id besides `ids`.

    `pc.index_in` hashes its whole value set at each call: with a call for each block of queries that is quadratic in queries.
    """

    def __init__(self, ids: pa.Array | pa.ChunkedArray) -> None:
        self.ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
        hashes = hash_strings(self.ids)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def __len__(self) -> int:
        return len(self.ids)

    def positions(self, wanted: pa.Array | pa.ChunkedArray) -> Rows:
        """The position of each of `wanted`, int64 [n]; -1 for an id that is not in the list."""
        wanted = wanted.combine_chunks() if isinstance(wanted, pa.ChunkedArray) else wanted
        return places_of(self._sorted, self._order, wanted, lambda places: self.ids.take(pa.array(places)))

    def positions_of_rows(self, wanted: pa.ChunkedArray) -> Rows:
        """As `positions`, for the ids of rows: each distinct id is looked up once."""
        words = wanted.combine_chunks().dictionary_encode()
        return self.positions(words.dictionary)[words.indices.to_numpy()]
