"""The input of `encode`: the passages of a corpus, shard by shard, or queries, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from raydense.data.store import PassageStore, full_text, store_of
from raydense.data.tables import concat_parts, write_arrow
from raydense.inference.settings import QUERIES_A_FILE
from raydense.storage import Artifact


class Source(Protocol):
    """Texts in parts: part i has the rows [start, stop) of `parts[i]` and becomes one file. `unit` is the word for the texts."""

    unit: str

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The rows [start, stop) of each part."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the artifact."""

    def texts(self, part: int) -> list[str]:
        """The texts of a part's rows, as the encoder reads them."""

    def write_ids(self, path: Path) -> None:
        """Write the ids by row, as an Arrow file."""


@dataclass
class Passages:
    """A corpus; a part is one of its files."""

    store: PassageStore
    unit: str = "passages"

    @property
    def parts(self) -> list[tuple[int, int]]:
        return self.store.shards

    @property
    def fingerprint(self) -> str:
        return self.store.fingerprint

    def texts(self, part: int) -> list[str]:
        found: list[str] = full_text(self.store.slice(*self.parts[part], ["title", "text"])).to_pylist()
        return found

    def write_ids(self, path: Path) -> None:
        self.store.write_ids(path)


class Queries:
    """Queries in the order of their artifact, 2,048 per part; InputError if the artifact does not have `fingerprint`."""

    unit: str = "queries"

    def __init__(self, folder: str, fingerprint: str | None = None) -> None:
        artifact = Artifact.open(folder, "queries", fingerprint)
        self._fingerprint = artifact.fingerprint
        self._table = concat_parts(artifact.parts(".parquet"), "queries", ["query_id", "text"])

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def parts(self) -> list[tuple[int, int]]:
        total = len(self._table)
        return [(start, min(start + QUERIES_A_FILE, total)) for start in range(0, total, QUERIES_A_FILE)]

    def texts(self, part: int) -> list[str]:
        start, stop = self.parts[part]
        found: list[str] = self._table["text"].slice(start, stop - start).to_pylist()
        return found

    def write_ids(self, path: Path) -> None:
        write_arrow(path, pa.table({"query_id": self._table["query_id"]}))


@lru_cache(maxsize=1)
def source_of(corpus: str | None, queries: str | None, fingerprint: str) -> Source:
    """A corpus or queries, kept open by a worker process between tasks; InputError if they do not have `fingerprint`."""
    return Passages(store_of(corpus, fingerprint)) if corpus else Queries(str(queries), fingerprint)
