"""The first rows of an artifact, for Python or a notebook; only the files that hold them are read."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from raydense.errors import InputError

if TYPE_CHECKING:
    from raydense.storage.artifact import Artifact

# by kind, the files whose rows are those of the artifact, as patterns between blanks
_FILES = {kind: f"{kind}-*.arrow" for kind in ("corpus", "embeddings", "generated")}
_FILES |= dict.fromkeys(("queries", "qrels", "examples", "run", "topics"), "*.parquet") | {
    "report": "per_query.parquet analysis.parquet",
    "annotation": "pairs-*.parquet",
}
_SHOWN = 5


def first_rows(artifact: Artifact, n: int) -> pa.Table:
    """The first `n` rows, in the artifact's order; fewer if it has fewer. InputError for a kind without rows, or a negative `n`."""
    if n < 0:
        raise InputError(f"n is {n}", "n", "give 0 or more")
    if artifact.kind not in _FILES:
        raise InputError(f"has no rows to show: it is of kind {artifact.kind}", artifact.place, f"give one of {', '.join(_FILES)}")
    parts: list[pa.RecordBatch] = []
    for batch in _batches(artifact, n):
        parts.append(batch.slice(0, n))
        n -= len(parts[-1])
        if n <= 0:
            break
    if not parts:
        raise InputError("has no files with rows", artifact.place, "look at its manifest.json")
    return pa.Table.from_batches(parts)


def _batches(artifact: Artifact, size: int) -> Iterator[pa.RecordBatch]:
    """All rows in order, read file by file; Parquet files at most `size` rows at once."""
    for name in _files_with_rows(artifact):
        path = str(artifact.file(name))
        if path.endswith(".parquet"):
            with pq.ParquetFile(path) as file:
                if not file.metadata.num_rows:
                    yield pa.RecordBatch.from_pylist([], file.schema_arrow)
                yield from file.iter_batches(max(1, min(size, 65_536)))
        else:
            reader = pa.ipc.open_file(pa.memory_map(path))
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))


def _files_with_rows(artifact: Artifact) -> list[str]:
    patterns = _FILES.get(artifact.kind, "").split()
    return [file.path for file in artifact.files if any(fnmatch(file.path, one) for one in patterns)]


def as_html(artifact: Artifact) -> str:
    """A heading with kind, rows and place; below it the first rows, or the files if none has rows. Nothing is fetched from a bucket."""
    heading = f"<b>{escape(artifact.kind)}</b>, {artifact.rows:,} rows, <code>{escape(str(artifact.place))}</code>"
    if artifact.rows and not artifact.place.everywhere and _files_with_rows(artifact):
        return f"{heading}\n{first_rows(artifact, _SHOWN).to_pandas().to_html(index=False)}"
    files = "".join(f"<tr><td>{escape(file.path)}</td><td>{file.bytes:,} bytes</td></tr>" for file in artifact.files)
    return f"{heading}\n<table>{files}</table>"
