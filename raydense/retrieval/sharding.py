"""How many shards an index gets where the settings leave it open: so many that each stays under about 2 GiB."""

from __future__ import annotations

from raydense.retrieval.settings import IndexSettings
from raydense.storage import Artifact, begun_from, read_manifest

SHARD_BYTES = 2 * 2**30


def with_shards(settings: IndexSettings) -> IndexSettings:
    """The settings with a number of shards: the given one, that of the output if it was begun before, otherwise by the size.

    The number follows from the inputs alone, so that it is the same on every machine. Raises InputError if an input is missing, or
    FAISS does not know the factory string.
    """
    if settings.shards:
        return settings
    return settings.replaced({"shards": shards_begun(settings) or shards_of(settings)})


def shards_begun(settings: IndexSettings) -> int:
    """The number of shards that the output was begun with; 0 if it was not."""
    manifest = read_manifest(settings.output)
    there = manifest["made_from"] if manifest else begun_from(settings.output) or {}
    return int(there.get("settings", {}).get("shards") or 0) if there.get("stage") == "index" else 0


def shards_of(settings: IndexSettings) -> int:
    """The number of shards by the size of the index: of FAISS's codes; of BM25's scores, which are about as large as the texts."""
    if settings.kind == "bm25":
        return -(-_text_bytes(settings) // SHARD_BYTES)
    from raydense.retrieval.faiss_size import size_of

    vectors = Artifact.open(str(settings.embeddings), "embeddings")
    return shards_for(size_of(settings.factory, int(vectors.summary["dimension"])).vector, vectors.rows)


def shards_for(vector_bytes: float, rows: int) -> int:
    """The least number of shards of at most about 2 GiB of codes."""
    return max(1, min(rows, -(-round(vector_bytes * rows) // SHARD_BYTES)))


def _text_bytes(settings: IndexSettings) -> int:
    read = [("corpus", settings.corpus), *([("generated", settings.expand)] if settings.expand else [])]
    files = [file for kind, folder in read for file in Artifact.open(str(folder), kind).files if file.path.startswith(f"{kind}-")]
    return max(1, sum(file.bytes for file in files))
