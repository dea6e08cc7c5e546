"""Makes small artifacts of known content for the tests of search."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.store import CorpusWriter
from raydense.storage import Artifact, Draft


def write_embeddings(
    folder: Path, vectors: NDArray[np.floating], files: int = 2, model: str = "m", corpus: str = "c", queries: str | None = None
) -> Artifact:
    """An embeddings artifact in the format of `encode`, of `files` Arrow files; passage row i is named p<i>, query row i q<i>.

    Of queries where `queries`, their fingerprint, is given.
    """
    draft = Draft.open(folder, "embeddings", {"vectors": len(vectors), "sum": float(vectors.astype(np.float64).sum())})
    if draft.done:
        return draft.done
    rows, dimension = vectors.shape
    for part, at in enumerate(np.array_split(np.arange(rows), files)):
        flat = pa.array(np.ascontiguousarray(vectors[at]).ravel())
        table = pa.table({"row": at, "embedding": pa.FixedSizeListArray.from_arrays(flat, dimension)})
        draft.commit(f"embeddings-{part:05d}.arrow", lambda path, table=table: _write(table, path), len(at))
    one = "query" if queries else "passage"
    ids = pa.table({f"{one}_id": pa.array([f"{one[0]}{i}" for i in range(rows)])})
    draft.commit(f"{one}_ids.arrow", lambda path: _write(ids, path), rows)
    of = {"of": "queries", "queries": queries} if queries else {"of": "passages", "corpus": corpus}
    return draft.finish(rows, dimension=dimension, dtype=str(vectors.dtype), model=model, **of)


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)


def write_corpus(folder: Path, texts: list[str], titles: list[str] | None = None, shard_rows: int = 50) -> Artifact:
    """A corpus artifact whose passage row i is named p<i>."""
    writer = CorpusWriter(Draft.open(folder, "corpus", {"texts": texts}), shard_rows)
    ids = [f"p{i}" for i in range(len(texts))]
    writer.add(pa.table({"passage_id": ids, "title": titles or [""] * len(texts), "text": texts}))
    return writer.finish()
